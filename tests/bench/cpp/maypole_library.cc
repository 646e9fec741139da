#include "tests/bench/cpp/maypole_library.h"

#include <cstdlib>
#include <utility>

namespace maypole::bench {
namespace {

constexpr int kForever = -1;

Status WaitThroughSignals(Client* client, int64_t handle) {
  Status status = client->Wait(handle, kForever);
  while (status.code() == Code::kCancelled) {
    status = client->Wait(handle, kForever);
  }
  return status;
}

}  // namespace

Status MaypoleLibrary::Join(std::unique_ptr<MaypoleLibrary>* out) {
  RankOptions options;
  const auto get = [](const char* name) { return std::getenv(name); };
  if (Status s = ReadRankOptions(get, &options); !s.ok()) return s;
  std::unique_ptr<Client> client;
  if (Status s = Client::Join(options, &client); !s.ok()) return s;
  out->reset(new MaypoleLibrary(std::move(client)));
  return Status();
}

Status MaypoleLibrary::Allocate(Storage storage, int64_t elements,
                                Memory* out) {
  if (storage != Storage::kArena) {
    return Reducer::Allocate(storage, elements, out);
  }
  void* data = nullptr;
  if (Status s = client_->Allocate(
          static_cast<uint64_t>(elements) * sizeof(float), &data);
      !s.ok()) {
    return s;
  }
  out->owner =
      std::shared_ptr<void>(data, [](void* p) { (void)Client::Free(p); });
  out->data = {static_cast<float*>(data), static_cast<size_t>(elements)};
  return Status();
}

Status MaypoleLibrary::Submit(const Buffer& buffer, bool awaited) {
  const Tensor tensor{DType::kFloat32, buffer.shape, buffer.data.data(),
                      buffer.data.data()};
  int64_t handle = 0;
  AllreduceOptions options;
  options.op = Op::kSum;
  options.awaited = awaited;
  Status s = client_->Allreduce(buffer.name, tensor, options, &handle);
  if (s.ok()) handles_.push_back(handle);
  return s;
}

Status MaypoleLibrary::Finish() {
  Status first;
  for (int64_t handle : handles_) {
    Status s = WaitThroughSignals(client_.get(), handle);
    if (first.ok()) first = std::move(s);
    (void)client_->Release(handle);
  }
  handles_.clear();
  return first;
}

Status MaypoleLibrary::Allreduce(const std::vector<Buffer>& buffers) {
  for (auto buffer = buffers.rbegin(); buffer != buffers.rend(); ++buffer) {
    if (Status s = Submit(*buffer, buffers.size() == 1); !s.ok()) {
      // The other ranks wait for what this one cannot submit: leaving ends
      // their operations, and ours that are in flight.
      client_->Leave();
      (void)Finish();
      return s;
    }
  }
  return Finish();
}

Status MaypoleLibrary::Barrier() {
  int64_t handle = 0;
  if (Status s = client_->Barrier(&handle); !s.ok()) return s;
  handles_.push_back(handle);
  return Finish();
}

Status MaypoleLibrary::Gather(const std::vector<double>& mine,
                              std::vector<double>* all) {
  const Tensor tensor{DType::kFloat64,
                      {static_cast<int64_t>(mine.size())},
                      mine.data(),
                      nullptr};
  int64_t handle = 0;
  if (Status s = client_->Allgather("bench.times", tensor, &handle); !s.ok()) {
    return s;
  }
  Status status = WaitThroughSignals(client_.get(), handle);
  Result result;
  if (status.ok()) status = client_->GetResult(handle, &result);
  if (status.ok()) {
    const auto* begin = static_cast<const double*>(result.data);
    all->assign(begin, begin + result.first_dim);
  }
  (void)client_->Release(handle);
  return status;
}

}  // namespace maypole::bench
