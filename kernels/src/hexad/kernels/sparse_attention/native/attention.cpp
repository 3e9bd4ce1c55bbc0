// The C interface of block-sparse attention, and the engines of the vector unit.
#include "attention.h"

namespace hexad {

int attend_on_vector_unit(AttentionCall& call) {
  // Where AMX is built in, the system may still refuse it; plain float32 then serves every format.
#if !defined(HEXAD_AMX)
#if defined(HEXAD_DOT_BF16) && defined(HEXAD_DOT_I8)
  if (call.quantize) return attend<Engine<int8_t, 1, BFloat16, 1, false, 3>>(call);
#elif defined(HEXAD_DOT_I8)
  if (call.quantize) return attend<Engine<int8_t, 1, float, 1, false, 5>>(call);
#endif
#if defined(HEXAD_DOT_BF16)
  if (call.dtype == kBFloat16 && !call.quantize) return attend<Engine<BFloat16, 1, BFloat16, 1, false, 3>>(call);
#endif
#endif
  return attend<Engine<float, 1, float, 1, false, 5>>(call);
}

}  // namespace hexad

extern "C" {

// Bit 0: AMX serves. Bit 1: bfloat16 dot products. Bit 2: int8 dot products. Bits 8 and up: floats in a vector.
int32_t hexad_features() {
  int32_t features = hexad::kWidth << 8;
#if defined(HEXAD_AMX)
  if (hexad::request_amx()) features |= 1;
#else
#if defined(HEXAD_DOT_BF16)
  features |= 2;
#endif
#if defined(HEXAD_DOT_I8)
  features |= 4;
#endif
#endif
  return features;
}

// 0: done. 1: out of memory.
int32_t hexad_block_sparse_attention(hexad::AttentionCall* call) {
#if defined(HEXAD_AMX)
  if (call->use_amx && hexad::request_amx()) return hexad::attend_on_matrix_unit(*call);
#endif
  return hexad::attend_on_vector_unit(*call);
}

}  // extern "C"
