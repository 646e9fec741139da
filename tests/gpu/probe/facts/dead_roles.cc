// The roles of fact 6: the survivor, whose stream waits and who watches; the
// writer, who is killed around its write; and who is killed while it waits
// itself.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/facts/dead_page.h"
#include "tests/gpu/probe/facts/fact_roles.h"
#include "tests/gpu/probe/facts/staging.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr uint64_t kMarkerBytes = 1 << 20;
constexpr uint64_t kMarkerWords = kMarkerBytes / 4;
constexpr uint32_t kUnmarked = 0xffffffff;
constexpr Duration kDeathTimeout = Seconds(40);
constexpr Duration kReleaseTimeout = Seconds(10);
// How long after its release what the dead still write is looked for.
constexpr Duration kAftermath = Seconds(0.02);
// The writer's stream: so many spins before the flag, and after it.
constexpr int kSpinsBefore = 10;
constexpr int kSpinsAfter = 100;
constexpr int64_t kSpin = 300'000;  // ns
constexpr Duration kStep = Seconds(20);

absl::Status WarmUp(gpu::Gpu& gpu, gpu::Stream stream, gpu::Address word) {
  absl::Status status = gpu.Spin(stream, 1, 1000);
  if (status.ok()) status = gpu.WriteValue(stream, word, 1);
  if (status.ok()) status = gpu.WaitValue(stream, word, 1);
  if (status.ok()) status = WaitDone(gpu, stream, kStep);
  return status;
}

// --- Survivor ----------------------------------------------------------------

// How the death of a process is seen: by its pidfd, and by the end of a socket
// that it held. Nanoseconds of Now(); 0: not yet.
class Death {
 public:
  Death(pid_t pid, Fd socket)
      : pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))),
        socket_(std::move(socket)) {}

  bool has_pidfd() const { return pidfd_.valid(); }
  // Where there are no pidfds, the socket has to do.
  int64_t seen() const { return has_pidfd() ? by_pidfd_ : by_socket_; }
  int64_t by_socket() const { return by_socket_; }

  void Look() {
    pollfd fds[2] = {{pidfd_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    if (poll(fds, 2, 0) <= 0) return;
    const int64_t now = Now();
    if (by_pidfd_ == 0 && fds[0].revents != 0) by_pidfd_ = now;
    if (by_socket_ == 0 && fds[1].revents != 0) by_socket_ = now;
  }

 private:
  Fd pidfd_, socket_;
  int64_t by_pidfd_ = 0, by_socket_ = 0;
};

// What the dead process's stream wrote after its death was seen.
class Aftermath {
 public:
  Aftermath(const SharedMemory& memory, int64_t death)
      : memory_(memory),
        death_(death),
        last_(LoadWord(memory, kProgressWord)) {}
  void Look() {
    const uint64_t now = LoadWord(memory_, kProgressWord);
    if (now == last_) return;
    last_ = now;
    ++writes_;
    latest_ = Now() - death_;
  }
  int64_t writes() const { return writes_; }
  int64_t latest() const { return latest_; }

 private:
  const SharedMemory& memory_;
  const int64_t death_;
  uint64_t last_;
  int64_t writes_ = 0, latest_ = 0;
};

class Survivor {
 public:
  explicit Survivor(Stage& stage) : stage_(stage), gpu_(stage.gpu()) {}
  absl::Status Open();
  absl::StatusOr<std::string> Handle(Words& words);

 private:
  absl::StatusOr<std::string> TakePage(Fd fd);
  absl::Status Enqueue(uint64_t round);
  absl::StatusOr<std::string> Round(Words& words);
  absl::StatusOr<std::string> Work(double seconds);
  absl::StatusOr<bool> Healthy(uint32_t word);

  Stage& stage_;
  gpu::Gpu& gpu_;
  FlagPage page_;
  Staging staging_;
  gpu::OwnedStream waits_, other_;
  gpu::OwnedMemory marker_, copy_;
};

absl::Status Survivor::Open() {
  auto staging = Staging::Create(gpu_);
  if (!staging.ok()) return staging.status();
  staging_ = *std::move(staging);
  for (gpu::OwnedStream* stream : {&waits_, &other_}) {
    auto made = gpu::OwnedStream::Create(gpu_);
    if (!made.ok()) return made.status();
    *stream = *std::move(made);
  }
  for (gpu::OwnedMemory* memory : {&marker_, &copy_}) {
    auto made = gpu::OwnedMemory::Allocate(
        gpu_, stage_.options().quick ? kMarkerBytes : 64 * kMarkerBytes);
    if (!made.ok()) return made.status();
    *memory = *std::move(made);
  }
  return absl::OkStatus();
}

// "page", with a descriptor.
absl::StatusOr<std::string> Survivor::TakePage(Fd fd) {
  auto page = FlagPage::Map(gpu_, std::move(fd), kDeadPageBytes);
  if (!page.ok()) return page.status();
  page_ = *std::move(page);
  // Everything that a round does is done once before a stream waits: what is
  // loaded at first use must not have to wait for that stream.
  for (const gpu::Stream stream : {waits_.get(), other_.get()}) {
    const absl::Status warm =
        WarmUp(gpu_, stream, page_.address(kSurvivorScratch));
    if (!warm.ok()) return warm;
  }
  StoreWord(page_.memory(), kFlagWord, 1);
  absl::Status status = Enqueue(1);
  if (status.ok()) status = WaitDone(gpu_, waits_.get(), kStep);
  if (!status.ok()) return status;
  const auto marked =
      staging_.Holds(other_.get(), marker_.address(), 1, kMarkerWords);
  if (!marked.ok()) return marked.status();
  const auto healthy = Healthy(1);
  if (!healthy.ok()) return healthy.status();
  if (!*marked || !*healthy) {
    return absl::InternalError("fills and copies give wrong bytes");
  }
  return "ready";
}

absl::Status Survivor::Enqueue(uint64_t round) {
  const gpu::Stream stream = waits_.get();
  absl::Status status = gpu_.WaitValue(stream, page_.address(kFlagWord), round);
  if (status.ok()) {
    status = gpu_.Fill(stream, marker_.address(), static_cast<uint32_t>(round),
                       kMarkerWords);
  }
  if (status.ok()) {
    status = gpu_.WriteValue(stream, page_.address(kDoneWord), round);
  }
  return status;
}

// Do kernels and copies of another stream still work?
absl::StatusOr<bool> Survivor::Healthy(uint32_t word) {
  absl::Status status = gpu_.KernelCopy(other_.get(), copy_.address(),
                                        marker_.address(), kMarkerBytes, 0);
  if (!status.ok()) return status;
  return staging_.Holds(other_.get(), copy_.address(), word, kMarkerWords);
}

// "round NUMBER PID", with the other end of a socket of that process. Says
// "waiting", and then how the round went.
absl::StatusOr<std::string> Survivor::Round(Words& words) {
  const uint64_t round = static_cast<uint64_t>(words.Integer(1));
  Death death(static_cast<pid_t>(words.Integer(2)), words.TakeFd());
  absl::Status status =
      gpu_.Fill(other_.get(), marker_.address(), kUnmarked, kMarkerWords);
  if (status.ok()) status = WaitDone(gpu_, other_.get(), kStep);
  if (status.ok()) status = Enqueue(round);
  if (status.ok()) status = stage_.channel().Send("waiting");
  if (!status.ok()) return status;

  const SharedMemory& memory = page_.memory();
  const auto deadline = Clock::now() + kDeathTimeout;
  while (death.seen() == 0) {
    death.Look();
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError("no death was seen");
    }
    std::this_thread::yield();
  }
  // Written before: the stream did not need the watchdog.
  const bool by_writer = LoadWord(memory, kFlagWord) >= round;
  Aftermath aftermath(memory, death.seen());
  const int64_t written = Now();
  StoreWord(memory, kFlagWord, round);
  while (LoadWord(memory, kDoneWord) != round) {
    aftermath.Look();
    if (Now() - written > kReleaseTimeout.count()) {
      return absl::DeadlineExceededError(
          "the stream did not go on after the watchdog's write");
    }
  }
  const int64_t done = Now();
  while (Now() - done < kAftermath.count()) {
    aftermath.Look();
    death.Look();
  }
  status = WaitDone(gpu_, waits_.get(), kReleaseTimeout);
  if (!status.ok()) return status;
  const auto marked =
      staging_.Holds(other_.get(), marker_.address(),
                     static_cast<uint32_t>(round), kMarkerWords);
  if (!marked.ok()) return marked.status();
  const auto healthy = Healthy(static_cast<uint32_t>(round));
  if (!healthy.ok()) return healthy.status();
  return absl::StrCat("round ", death.seen(), " ", death.by_socket(), " ",
                      written, " ", done, " ", by_writer ? 1 : 0, " ",
                      *marked ? 1 : 0, " ", *healthy ? 1 : 0, " ",
                      aftermath.writes(), " ", aftermath.latest(), " ",
                      death.has_pidfd() ? 1 : 0);
}

// "work SECONDS": copies by a kernel, one after the other. How many, how long
// they took, and how long those took that ended late.
absl::StatusOr<std::string> Survivor::Work(double seconds) {
  const uint64_t bytes = marker_.bytes();
  absl::Status status =
      gpu_.Fill(other_.get(), marker_.address(), 77, bytes / 4);
  if (status.ok()) status = WaitDone(gpu_, other_.get(), kStep);
  if (status.ok()) status = stage_.channel().Send("working");
  std::vector<double> times;
  const int64_t end = Now() + Seconds(seconds).count();
  for (int64_t start = Now(); status.ok() && start < end;) {
    status = gpu_.KernelCopy(other_.get(), copy_.address(), marker_.address(),
                             bytes, 0);
    if (status.ok()) status = WaitDone(gpu_, other_.get(), kStep);
    const int64_t now = Now();
    times.push_back(static_cast<double>(now - start) / 1e6);
    start = now;
  }
  if (!status.ok()) return status;
  const auto good =
      staging_.Holds(other_.get(), copy_.address(), 77, kMarkerWords);
  if (!good.ok()) return good.status();
  const double median = Quantile(times, 0.5);
  return absl::StrCat("worked ", times.size(), " ", median, " ",
                      Quantile(times, 1), " ", *good ? 1 : 0);
}

absl::StatusOr<std::string> Survivor::Handle(Words& words) {
  if (words[0] == "page") return TakePage(words.TakeFd());
  if (words[0] == "round") return Round(words);
  if (words[0] == "work") return Work(words.Number(1));
  const auto room = gpu_.MemoryRoom();  // "room"
  if (!room.ok()) return room.status();
  return absl::StrCat("room ", room->free_bytes);
}

}  // namespace

absl::Status PlaySurvivor(Stage& stage) {
  Survivor survivor(stage);
  const absl::Status status = survivor.Open();
  if (!status.ok()) return status;
  return Serve(stage, [&](Words& words) { return survivor.Handle(words); });
}

// Told: "socket", with a descriptor, before it opens the device, so that the
// socket is the older descriptor; "page", with one; "write ROUND".
absl::Status PlayWriter(Stage& stage) {
  auto socket = stage.channel().Expect("socket", kStep);
  if (!socket.ok()) return socket.status();
  auto line = stage.channel().Expect("page", kStep);
  if (!line.ok()) return line.status();
  gpu::Gpu& gpu = stage.gpu();
  auto page =
      FlagPage::Map(gpu, Words(*std::move(line)).TakeFd(), kDeadPageBytes);
  if (!page.ok()) return page.status();
  auto stream = gpu::OwnedStream::Create(gpu);
  if (!stream.ok()) return stream.status();
  absl::Status status =
      WarmUp(gpu, stream->get(), page->address(kWriterScratch));
  if (!status.ok()) return status;
  uint64_t progress = 0;
  return Serve(stage, [&](Words& words) -> absl::StatusOr<std::string> {
    if (words[0] != "write") return "ready";
    const uint64_t round = static_cast<uint64_t>(words.Integer(1));
    for (int i = 0; status.ok() && i < kSpinsBefore + kSpinsAfter; ++i) {
      if (i == kSpinsBefore) {
        status = gpu.WriteValue(stream->get(), page->address(kFlagWord), round);
      }
      if (status.ok()) status = gpu.Spin(stream->get(), 1, kSpin);
      if (status.ok()) {
        status = gpu.WriteValue(stream->get(), page->address(kProgressWord),
                                round << 32 | ++progress);
      }
    }
    if (!status.ok()) return status;
    return "enqueued";
  });
}

// Arguments: bytes. Takes them, and lets its stream wait for ever.
absl::Status PlayOwnWaiter(Stage& stage) {
  gpu::Gpu& gpu = stage.gpu();
  auto memory = SharedMemory::Create(kDeadPageBytes);
  if (!memory.ok()) return memory.status();
  auto page = FlagPage::Register(gpu, *std::move(memory));
  if (!page.ok()) return page.status();
  auto stream = gpu::OwnedStream::Create(gpu);
  if (!stream.ok()) return stream.status();
  auto taken =
      gpu::OwnedMemory::Allocate(gpu, static_cast<uint64_t>(stage.Number(0)));
  if (!taken.ok()) return taken.status();
  absl::Status status =
      WarmUp(gpu, stream->get(), page->address(kWriterScratch));
  const auto fill = [&] {
    return gpu.Fill(stream->get(), taken->address(), 1, taken->bytes() / 4);
  };
  if (status.ok()) status = fill();  // once before anything waits
  if (status.ok()) status = WaitDone(gpu, stream->get(), kStep);
  if (status.ok()) {
    status = gpu.WaitValue(stream->get(), page->address(kNeverWord), 1);
  }
  if (status.ok()) status = fill();
  if (!status.ok()) stage.Fail(status);
  return Serve(stage, [&](Words&) -> absl::StatusOr<std::string> {
    const auto done = gpu.Done(stream->get());
    if (!done.ok()) return done.status();
    return *done ? "done" : "waiting";
  });
}

}  // namespace maypole::probe
