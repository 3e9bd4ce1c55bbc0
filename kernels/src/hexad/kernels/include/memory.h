// Memory of a call: one block kept from call to call, and its division into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>

namespace hexad {

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Large buffers are kept from call to call: the system hands out fresh memory page by page, which can take
// longer than the attention itself. A second caller at the same time gets memory of its own.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : own_(!mutex().try_lock()) {
    if (own_) {
      data_ = allocate(bytes);
      return;
    }
    if (kept_bytes() < bytes) {
      std::free(kept());
      kept() = allocate(bytes);
      kept_bytes() = kept() ? bytes : 0;
    }
    data_ = kept();
  }
  ~Workspace() {
    if (own_) {
      std::free(data_);
      return;
    }
    if (kept_bytes() > kMostKept) {
      std::free(kept());
      kept() = nullptr;
      kept_bytes() = 0;
    }
    mutex().unlock();
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return data_; }

 private:
  static constexpr size_t kMostKept = size_t(256) << 20;
  static char* allocate(size_t bytes) { return static_cast<char*>(std::aligned_alloc(64, round_up(bytes, 64))); }
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static char*& kept() {
    static char* p = nullptr;
    return p;
  }
  static size_t& kept_bytes() {
    static size_t n = 0;
    return n;
  }
  bool own_;
  char* data_;
};

// Hands out pieces of one block, each on its own cache line; with no block it only adds up their sizes.
class Pieces {
 public:
  explicit Pieces(char* base) : base_(base) {}
  template <class T>
  void take(T*& piece, int64_t count) {
    piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(count * int64_t(sizeof(T)), 64);
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace hexad
