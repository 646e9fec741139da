// ReadyWords: 64-bit words in host memory; a stream writes one when it reaches
// that point.
//
// Purpose: checking such a word is a load; cuEventQuery() is a call into the
// driver, which takes locks that the user's own launches also need.
//
//   ReadyWord word;
//   if (words.Take(device, &word)) { ... }       // false: query an event
//   words.Write(word, stream);                   // after the work
//   if (words.Written(word)) { ... }             // all work before it is done
//   words.Return(word);
//
// Thread contract: all functions may be called by any thread.
//
// Invariants: each use of a word waits for another value, so a late write of an
// earlier use is never mistaken for a later one. At most kWords are taken.
#ifndef MAYPOLE_CLIENT_GPU_READY_WORDS_H_
#define MAYPOLE_CLIENT_GPU_READY_WORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/gpu/gpu.h"

namespace maypole {

struct ReadyWord {
  std::atomic<uint64_t>* address = nullptr;  // null: none
  uint64_t value = 0;                        // what the stream writes
};

class ReadyWords {
 public:
  static constexpr size_t kWords = 4096;

  explicit ReadyWords(const cuda::Driver& driver) : driver_(driver) {}
  ~ReadyWords();
  ReadyWords(const ReadyWords&) = delete;
  ReadyWords& operator=(const ReadyWords&) = delete;

  // False if the device's streams cannot write words, or if all words are
  // taken. The device's context must be current.
  bool Take(const cuda::Gpu& device, ReadyWord* word);
  // Enqueues the write.
  cuda::CUresult Write(const ReadyWord& word, cuda::CUstream stream) const;
  static bool Written(const ReadyWord& word) {
    return word.address->load(std::memory_order_acquire) == word.value;
  }
  void Return(const ReadyWord& word);

 private:
  bool Allocate();

  const cuda::Driver& driver_;
  std::mutex mutex_;
  std::atomic<uint64_t>* page_ = nullptr;
  cuda::CUdeviceptr device_page_ = 0;  // the same, as devices see it
  bool tried_ = false;
  std::vector<std::atomic<uint64_t>*> free_;
  uint64_t last_value_ = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_READY_WORDS_H_
