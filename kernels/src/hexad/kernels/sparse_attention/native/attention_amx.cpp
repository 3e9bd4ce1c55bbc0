// The engines of Intel's matrix unit.
#include "attention.h"

namespace hexad {

#if defined(HEXAD_AMX)
int attend_on_matrix_unit(AttentionCall& call) {
  if (call.quantize) return attend<Engine<int8_t, 1, BFloat16, 1, true, 3>>(call);
  switch (call.dtype) {
    // Float32 as the sum of three bfloat16 terms, which carry its 24 bits; float16 as that of two.
    case kFloat32:
      return attend<Engine<BFloat16, 3, BFloat16, 3, true, 5>>(call);
    case kFloat16:
      return attend<Engine<BFloat16, 2, BFloat16, 2, true, 4>>(call);
    default:
      return attend<Engine<BFloat16, 1, BFloat16, 1, true, 3>>(call);
  }
}
#endif

}  // namespace hexad
