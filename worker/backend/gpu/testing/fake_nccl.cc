#include "worker/backend/gpu/testing/fake_nccl.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/reduce/reduce.h"
#include "worker/backend/gpu/testing/fake_shared.h"

namespace maypole::gpu {
namespace {

constexpr uint64_t kMagic = 0x6d61797066616b34;  // "maypfak4"
constexpr int kMaxRanks = 64;
constexpr uint64_t kChunk = 1 << 20;
constexpr uint64_t kHeader = 64 << 10;

// What an NcclId holds.
struct Where {
  uint64_t magic;
  uint64_t communicator;  // Page::communicator
  int32_t pid, fd;
};
static_assert(sizeof(Where) <= sizeof(NcclId));

absl::Status Invalid(const std::string& text) {
  return absl::InvalidArgumentError("ncclInvalidArgument: " + text);
}

bool CanSum(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct FakeCommunicator::Rank {
  std::atomic<uint32_t> taken, joined;
  char device[64], host_id[256];
  std::atomic<uint64_t> put_down, read;  // chunks
  // The AllReduce whose chunk was written last.
  std::atomic<uint64_t> elements, dtype;
};

struct FakeCommunicator::Page {
  uint64_t magic;
  uint64_t communicator;  // a random number
  std::atomic<int32_t> size;
  std::atomic<uint32_t> differ;  // 1 + a rank whose AllReduce differs
  Rank ranks[kMaxRanks];
};

absl::StatusOr<FakeNcclPage> MakeFakeNcclPage() {
  absl::StatusOr<Fd> fd =
      MakeSharedFile("maypole-fake-nccl", kHeader + kMaxRanks * kChunk);
  if (!fd.ok()) return fd.status();
  const Where where = {.magic = kMagic,
                       .communicator = RandomNumber(),
                       .pid = getpid(),
                       .fd = fd->get()};
  const uint64_t head[] = {where.magic, where.communicator};
  if (pwrite(fd->get(), head, sizeof(head), 0) != sizeof(head)) {
    return absl::InternalError(absl::StrCat("pwrite: ", strerror(errno)));
  }
  FakeNcclPage page = {.fd = *std::move(fd), .id = {}};
  memcpy(page.id.data(), &where, sizeof(where));
  return page;
}

FakeCommunicator::FakeCommunicator(Mapping mapping, int size, int rank)
    : mapping_(std::move(mapping)),
      page_(reinterpret_cast<Page*>(mapping_.data())),
      size_(size),
      rank_(rank) {
  static_assert(sizeof(Page) <= kHeader);
}

absl::StatusOr<std::shared_ptr<FakeCommunicator>> FakeCommunicator::Join(
    const NcclId& id, const Member& member) {
  const auto& [size, rank, device, host_id] = member;
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    return Invalid(
        absl::StrCat("rank ", rank, " of ", size, ", at most ", kMaxRanks));
  }
  Where where;
  memcpy(&where, id.data(), sizeof(where));
  if (where.magic != kMagic) return Invalid("not an id of a communicator");
  const uint64_t bytes = kHeader + kMaxRanks * kChunk;
  const absl::Status gone = Invalid(
      absl::StrCat("process ", where.pid, ", which made the id, is gone"));
  const absl::StatusOr<Fd> fd = OpenFdOf(where.pid, where.fd);
  if (!fd.ok() || !IsSharedFile(fd->get(), bytes)) return gone;
  absl::StatusOr<Mapping> mapping = MapShared(fd->get(), bytes);
  if (!mapping.ok()) return mapping.status();
  std::shared_ptr<FakeCommunicator> out(
      new FakeCommunicator(*std::move(mapping), size, rank));
  Page& page = *out->page_;
  if (page.magic != kMagic || page.communicator != where.communicator) {
    return gone;
  }
  int32_t expected = 0;
  if (!page.size.compare_exchange_strong(expected, size) && expected != size) {
    return Invalid(absl::StrCat("others join a communicator of ", expected,
                                " ranks, not ", size));
  }
  Rank& own = page.ranks[rank];
  if (own.taken.exchange(1) != 0) {
    return Invalid(absl::StrCat("rank ", rank, " has joined already"));
  }
  strncpy(own.device, device.c_str(), sizeof(own.device) - 1);
  strncpy(own.host_id, host_id.c_str(), sizeof(own.host_id) - 1);
  OrderSharedMemory();
  own.joined = 1;
  return out;
}

bool FakeCommunicator::AllJoined() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (page_->ranks[rank].joined == 0) return false;
  }
  OrderSharedMemory();
  return true;
}

// Call it when all ranks have joined.
absl::Status FakeCommunicator::Check() const {
  for (int a = 0; a < size_; ++a) {
    for (int b = a + 1; b < size_; ++b) {
      const Rank &one = page_->ranks[a], &other = page_->ranks[b];
      if (strcmp(one.device, other.device) == 0 &&
          strcmp(one.host_id, other.host_id) == 0) {
        return absl::AbortedError(
            absl::StrCat("ncclInvalidUsage: Duplicate GPU detected : rank ", a,
                         " and rank ", b, " both on CUDA device ", one.device));
      }
    }
  }
  if (const uint32_t differ = page_->differ; differ != 0) {
    const Rank& other = page_->ranks[differ - 1];
    return absl::AbortedError(absl::StrCat(
        "ncclInvalidUsage: not all ranks call the same AllReduce: rank ",
        differ - 1, " has ", other.elements.load(), " x ",
        std::string(Name(static_cast<DType>(other.dtype.load())))));
  }
  return absl::OkStatus();
}

absl::StatusOr<CommunicatorState> FakeCommunicator::Poll() {
  if (!AllJoined()) return CommunicatorState::kInProgress;
  const absl::Status status = Check();
  if (!status.ok()) return status;
  ready_ = true;
  if (std::exchange(in_progress_, false)) return CommunicatorState::kInProgress;
  return CommunicatorState::kReady;
}

std::byte* FakeCommunicator::Staging(int rank) const {
  return mapping_.data() + kHeader + static_cast<uint64_t>(rank) * kChunk;
}

class FakeCommunicator::Operation final : public FakeOperation {
 public:
  Operation(std::shared_ptr<FakeCommunicator> communicator, Piece data,
            uint64_t elements, DType dtype, uint64_t first_chunk)
      : communicator_(std::move(communicator)),
        elements_(elements),
        dtype_(dtype),
        chunk_(first_chunk) {
    reads_ = writes_ = {data};
  }

  Progress Advance(Pace&) override {
    if (communicator_->aborted_) return Progress::kFinished;
    if (!put_down_) return PutDown();
    return TakeUp();
  }
  std::string WaitsFor() const override {
    return absl::StrCat("other ranks of an AllReduce of ", elements_, " x ",
                        std::string(Name(dtype_)));
  }

 private:
  using Counter = std::atomic<uint64_t> Rank::*;
  bool AllHave(Counter counter, uint64_t chunk) const {
    const Rank* ranks = communicator_->page_->ranks;
    const bool all =
        std::all_of(ranks, ranks + communicator_->size_,
                    [&](const Rank& rank) { return rank.*counter >= chunk; });
    if (all) OrderSharedMemory();
    return all;
  }
  uint64_t Bytes() const { return std::min(kChunk, writes_[0].bytes - done_); }

  Progress PutDown() {
    if (!AllHave(&Rank::read, chunk_ - 1)) return Progress::kBlocked;
    const int rank = communicator_->rank_;
    memcpy(communicator_->Staging(rank), writes_[0].data + done_, Bytes());
    Rank& own = communicator_->page_->ranks[rank];
    own.elements = elements_;
    own.dtype = static_cast<uint64_t>(dtype_);
    OrderSharedMemory();
    own.put_down = chunk_;
    put_down_ = true;
    return Progress::kSome;
  }

  Progress TakeUp() {
    if (!AllHave(&Rank::put_down, chunk_) || !AllAlike()) {
      return Progress::kBlocked;
    }
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < communicator_->size_; ++rank) {
      inputs.push_back(communicator_->Staging(rank));
    }
    Reduce(dtype_, Op::kSum, inputs, writes_[0].data + done_,
           Bytes() / SizeOf(dtype_), {});
    done_ += Bytes();
    OrderSharedMemory();
    communicator_->page_->ranks[communicator_->rank_].read = chunk_;
    ++chunk_;
    put_down_ = false;
    return done_ == writes_[0].bytes ? Progress::kFinished : Progress::kSome;
  }

  bool AllAlike() const {
    Page& page = *communicator_->page_;
    for (int i = 0; i < communicator_->size_; ++i) {
      const Rank& rank = page.ranks[i];
      if (rank.elements == elements_ &&
          rank.dtype == static_cast<uint64_t>(dtype_)) {
        continue;
      }
      page.differ = static_cast<uint32_t>(i) + 1;
      return false;
    }
    return true;
  }

  const std::shared_ptr<FakeCommunicator> communicator_;
  const uint64_t elements_;
  const DType dtype_;
  uint64_t chunk_;
  bool put_down_ = false;
  uint64_t done_ = 0;
};

MadeOperation FakeCommunicator::AllReduce(const FakeMemory& memory,
                                          Address data, uint64_t elements,
                                          DType dtype) {
  if (!ready_ || in_progress_) {
    return absl::FailedPreconditionError(
        "ncclInvalidUsage: the communicator is in progress; poll it until it "
        "is ready");
  }
  const absl::Status status = Check();
  if (!status.ok()) return status;
  if (!CanSum(dtype))
    return Invalid(absl::StrCat("cannot sum ", std::string(Name(dtype))));
  if (elements == 0 || elements > (uint64_t{1} << 46) / SizeOf(dtype)) {
    return Invalid(absl::StrCat("cannot sum ", elements, " elements"));
  }
  const uint64_t bytes = elements * SizeOf(dtype);
  const absl::StatusOr<Piece> piece =
      memory.Find("data", data, bytes, SizeOf(dtype));
  if (!piece.ok()) return piece.status();
  const uint64_t first = next_chunk_;
  next_chunk_ += (bytes + kChunk - 1) / kChunk;
  in_progress_ = true;
  return std::make_unique<Operation>(shared_from_this(), *piece, elements,
                                     dtype, first);
}

}  // namespace maypole::gpu
