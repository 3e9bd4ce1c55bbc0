// Intel's matrix unit (AMX): permission to use it, the shapes of its registers, and the order of memory.
#pragma once

#include <cstdint>

#include "simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(HEXAD_AVX512) && \
    defined(__linux__)
#define HEXAD_AMX 1
#include <sys/syscall.h>
#include <unistd.h>

namespace hexad {

// Linux hands out the matrix unit's state on request, once a process.
inline bool request_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

// Shapes all eight registers for one thread, and puts back the shape it found: oneDNN, which shares the
// thread, may rely on its own.
class TileScope {
 public:
  TileScope() {
    asm volatile("sttilecfg %0" : "=m"(saved_));
    alignas(64) Config full = {};
    full.palette = 1;
    for (int t = 0; t < 8; ++t) full.row_bytes[t] = 64, full.rows[t] = 16;
    asm volatile("ldtilecfg %0" ::"m"(full));
  }
  ~TileScope() {
    if (saved_.palette)
      asm volatile("ldtilecfg %0" ::"m"(saved_));
    else
      asm volatile("tilerelease" ::);
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64, "the layout that ldtilecfg reads");
  alignas(64) Config saved_;
};

// GCC's tile loads do not say that they read memory, so stores before them must be made to happen before them.
inline __attribute__((always_inline)) void amx_see_stores() { asm volatile("" ::: "memory"); }

}  // namespace hexad

#endif
