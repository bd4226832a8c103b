// Every format's header, and PE_LANES_OF(NAME, class), PE_PACK_OF(NAME, class): the format's functions, or NULL where it
// has none.
#ifndef PE_FORMATS_ALL_H
#define PE_FORMATS_ALL_H

#include "formats/iq4_nl.h"
#include "formats/iq4_xs.h"
#include "formats/mxfp4.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

#define PE_LANES_OF(name, cls) PE_LANES_OF_##cls(name)
#define PE_LANES_OF_NONE(name) NULL
#define PE_LANES_OF_F32(name) NULL
#define PE_LANES_OF_F16(name) NULL
#define PE_LANES_OF_BF16(name) NULL
#define PE_LANES_OF_U2(name) pe_lanes_##name
#define PE_LANES_OF_U3(name) pe_lanes_##name
#define PE_LANES_OF_U4(name) pe_lanes_##name
#define PE_LANES_OF_U5(name) pe_lanes_##name
#define PE_LANES_OF_U6(name) pe_lanes_##name
#define PE_LANES_OF_I8(name) pe_lanes_##name
#define PE_LANES_OF_IQ4(name) pe_lanes_##name
#define PE_LANES_OF_FP4(name) pe_lanes_##name

#define PE_PACK_OF(name, cls) PE_PACK_OF_##cls(name)
#define PE_PACK_OF_NONE(name) NULL
#define PE_PACK_OF_F32(name) NULL
#define PE_PACK_OF_F16(name) NULL
#define PE_PACK_OF_BF16(name) NULL
#define PE_PACK_OF_U2(name) pe_pack_##name
#define PE_PACK_OF_U3(name) pe_pack_##name
#define PE_PACK_OF_U4(name) pe_pack_##name
#define PE_PACK_OF_U5(name) pe_pack_##name
#define PE_PACK_OF_U6(name) pe_pack_##name
#define PE_PACK_OF_I8(name) pe_pack_##name
#define PE_PACK_OF_IQ4(name) pe_pack_##name
#define PE_PACK_OF_FP4(name) pe_pack_##name

#endif
