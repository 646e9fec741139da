#include "tests/bench/cpp/library.h"

#include <cstdlib>

namespace maypole::bench {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Status Reducer::Allocate(Storage storage, int64_t elements, Memory* out) {
  if (storage != Storage::kPrivate) {
    return Status(Code::kUnimplemented, "this library has no arena");
  }
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return Status(
        Code::kResourceExhausted,
        "no memory for a tensor of " + std::to_string(bytes) + " bytes");
  }
  out->owner = std::shared_ptr<void>(data, std::free);
  out->data = {static_cast<float*>(data), static_cast<size_t>(elements)};
  return Status();
}

}  // namespace maypole::bench
