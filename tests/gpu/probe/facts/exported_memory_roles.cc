// The processes of fact 4.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/facts/exported_memory.h"
#include "tests/gpu/probe/facts/staging.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr Duration kWrite = Seconds(20);
// Writes that are under way when a busy holder is killed: tens of milliseconds.
constexpr int kBusyWrites = 200;

class Holder {
 public:
  explicit Holder(Stage& stage) : stage_(stage), gpu_(stage.gpu()) {}

  // All that takes memory besides, before the observer looks.
  absl::Status Open() {
    auto stream = gpu::OwnedStream::Create(gpu_);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    auto staging = Staging::Create(gpu_);
    if (!staging.ok()) return staging.status();
    staging_ = *std::move(staging);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Handle(Words& words) {
    const uint32_t word = static_cast<uint32_t>(words.Integer(1));
    if (words[0] == "allocate") return Allocate(words.Integer(1));
    if (words[0] == "import") return Import(words.TakeFd(), words.Integer(1));
    if (words[0] == "write") return Write(word);
    if (words[0] == "check") return Check(word);
    if (words[0] == "busy") return Busy(word);
    memory_.Reset();
    return "freed";
  }

 private:
  absl::StatusOr<std::string> Allocate(int64_t bytes) {
    auto memory =
        gpu::OwnedMemory::Allocate(gpu_, static_cast<uint64_t>(bytes));
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    const auto descriptor = gpu_.Export(memory_.address());
    if (!descriptor.ok()) return descriptor.status();
    const int fd = descriptor->get();
    const absl::Status sent = stage_.channel().Send(
        absl::StrCat("descriptor ", memory_.bytes()), {&fd, 1});
    if (!sent.ok()) return sent;
    return "exported";
  }

  absl::StatusOr<std::string> Import(Fd fd, int64_t bytes) {
    auto memory =
        gpu::OwnedMemory::Import(gpu_, fd.get(), static_cast<uint64_t>(bytes));
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    return "imported";
  }

  absl::Status Fill(uint32_t word) {
    return gpu_.Fill(stream_.get(), memory_.address(), word,
                     memory_.bytes() / sizeof(word));
  }

  absl::StatusOr<std::string> Write(uint32_t word) {
    absl::Status status = Fill(word);
    if (status.ok()) status = WaitDone(gpu_, stream_.get(), kWrite);
    if (!status.ok()) return status;
    return "written";
  }

  absl::StatusOr<std::string> Check(uint32_t word) {
    for (uint64_t at = 0; at < memory_.bytes(); at += Staging::kBytes) {
      const uint64_t bytes = std::min(Staging::kBytes, memory_.bytes() - at);
      const auto holds = staging_.Holds(stream_.get(), memory_.address() + at,
                                        word, bytes / sizeof(word));
      if (!holds.ok()) return holds.status();
      if (!*holds) return "holds 0";
    }
    return "holds 1";
  }

  absl::StatusOr<std::string> Busy(uint32_t word) {
    for (int i = 0; i < kBusyWrites; ++i) {
      const absl::Status status = Fill(word);
      if (!status.ok()) return status;
    }
    return "busy";
  }

  Stage& stage_;
  gpu::Gpu& gpu_;
  Staging staging_;
  gpu::OwnedMemory memory_;
  gpu::OwnedStream stream_;
};

}  // namespace

absl::Status PlayHolder(Stage& stage) {
  Holder holder(stage);
  absl::Status status = holder.Open();
  if (status.ok()) status = stage.channel().Send("ready");
  if (!status.ok()) return status;
  return Serve(stage, [&](Words& words) { return holder.Handle(words); });
}

absl::Status PlayObserver(Stage& stage) {
  gpu::Gpu& gpu = stage.gpu();
  const absl::Status status = stage.channel().Send("ready");
  if (!status.ok()) return status;
  return Serve(stage, [&](Words&) -> absl::StatusOr<std::string> {
    const auto room = gpu.MemoryRoom();
    if (!room.ok()) return room.status();
    return absl::StrCat("room ", room->free_bytes);
  });
}

}  // namespace maypole::probe
