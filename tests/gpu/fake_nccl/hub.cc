#include "tests/gpu/fake_nccl/hub.h"

#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/gpu/fake_nccl/combine.h"
#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/process.h"
#include "tests/gpu/fake_nccl/threads.h"
#include "tests/gpu/fake_nccl/wire.h"

namespace maypole::nccl::fake {
namespace {

using Bytes = std::vector<std::byte>;

struct Request {
  uint64_t id;
  Call call;
  Bytes input;
};

// The n-th collective of all ranks.
using Round = std::vector<std::optional<Request>>;

struct Lane {
  std::deque<Round> rounds;
  uint64_t first = 0;          // the number of rounds.front()
  std::vector<uint64_t> next;  // by rank
};

struct Pair {
  std::deque<Request> sends, receives;
};

class Hub {
 public:
  explicit Hub(int ranks) : ranks_(ranks), sockets_(ranks) {
    for (Lane& lane : lanes_) lane.next.resize(ranks);
  }

  void Serve(Fd socket);

 private:
  void Take(int rank, Request request);
  void TakeCollective(int rank, Request request);
  void TakePeerToPeer(int rank, Request request);
  void Complete(const Round& round);
  void CompletePair(int from, int to, Pair& pair);
  void Reply(int rank, uint64_t id, const std::byte* data, size_t bytes);
  void Lost(int rank);
  void Gone(int rank);
  [[noreturn]] void Mismatch(int rank, const Call& call, int other,
                             const Call& others);

  const size_t ranks_;
  std::mutex mutex_;  // guards all below
  std::vector<Fd> sockets_;
  std::set<int> gone_;
  Lane lanes_[2];                                 // of streams, of the host
  std::map<std::pair<int, int>, Pair> pairs_[2];  // by sender and receiver
};

void Hub::Serve(Fd socket) {
  MessageHeader header;
  Bytes data;
  if (!ReceiveMessage(socket.get(), &header, &data) ||
      header.type != MessageType::kJoin || header.id >= ranks_) {
    return;
  }
  const int rank = static_cast<int>(header.id);
  const int fd = socket.get();
  {
    std::lock_guard lock(mutex_);
    sockets_[rank] = std::move(socket);
  }
  bool left = false;
  while (ReceiveMessage(fd, &header, &data)) {
    std::lock_guard lock(mutex_);
    switch (header.type) {
      case MessageType::kRequest:
        Take(rank, {header.id, header.call, std::move(data)});
        break;
      case MessageType::kAborted:
        Lost(rank);
        [[fallthrough]];
      case MessageType::kLeave:
        left = true;
        Gone(rank);
        break;
      default:
        break;
    }
  }
  std::lock_guard lock(mutex_);
  if (!left) Lost(rank);
  Gone(rank);
  sockets_[rank].Reset();
}

void Hub::Take(int rank, Request request) {
  if (IsPeerToPeer(request.call.kind)) {
    TakePeerToPeer(rank, std::move(request));
  } else {
    TakeCollective(rank, std::move(request));
  }
}

void Hub::TakeCollective(int rank, Request request) {
  Lane& lane = lanes_[IsOfHost(request.call.kind)];
  const uint64_t index = lane.next[rank]++ - lane.first;
  if (index == lane.rounds.size()) lane.rounds.emplace_back(ranks_);
  Round& round = lane.rounds[index];
  for (size_t other = 0; other < ranks_; ++other) {
    if (round[other] && round[other]->call != request.call) {
      Mismatch(rank, request.call, static_cast<int>(other), round[other]->call);
    }
  }
  round[rank] = std::move(request);
  const bool complete = std::all_of(round.begin(), round.end(),
                                    [](auto& r) { return r.has_value(); });
  if (!complete) return;
  Complete(round);  // the oldest: each rank has been in all before
  lane.rounds.pop_front();
  ++lane.first;
}

void Hub::TakePeerToPeer(int rank, Request request) {
  const int peer = request.call.peer;
  const Kind kind = request.call.kind;
  auto& pairs = pairs_[IsOfHost(kind)];
  if (kind == Kind::kSend || kind == Kind::kConnectSend) {
    Pair& pair = pairs[{rank, peer}];
    pair.sends.push_back(std::move(request));
    CompletePair(rank, peer, pair);
  } else {
    Pair& pair = pairs[{peer, rank}];
    pair.receives.push_back(std::move(request));
    CompletePair(peer, rank, pair);
  }
}

void Hub::CompletePair(int from, int to, Pair& pair) {
  if (pair.sends.empty() || pair.receives.empty()) return;
  const Request& send = pair.sends.front();
  const Request& receive = pair.receives.front();
  if (send.call.count != receive.call.count ||
      send.call.type != receive.call.type) {
    Mismatch(from, send.call, to, receive.call);
  }
  Reply(to, receive.id, send.input.data(), send.input.size());
  Reply(from, send.id, nullptr, 0);
  pair.sends.pop_front();
  pair.receives.pop_front();
}

void Hub::Complete(const Round& round) {
  const Call& call = round[0]->call;
  std::vector<const std::byte*> inputs;
  for (const auto& request : round) inputs.push_back(request->input.data());
  const size_t bytes = call.count * SizeOf(call.type);
  Bytes output;
  switch (call.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      output.resize(bytes);
      Combine(call.type, call.op, inputs, call.count, output.data());
      break;
    case Kind::kReduceScatter:
      output.resize(bytes * ranks_);
      Combine(call.type, call.op, inputs, call.count * ranks_, output.data());
      break;
    case Kind::kBroadcast:
      output = round[call.peer]->input;
      break;
    case Kind::kAllGather:
      for (const auto& request : round) {
        output.insert(output.end(), request->input.begin(),
                      request->input.end());
      }
      break;
    default:
      break;
  }
  for (size_t i = 0; i < ranks_; ++i) {
    const int rank = static_cast<int>(i);
    const uint64_t id = round[i]->id;
    if (call.kind == Kind::kReduce && rank != call.peer) {
      Reply(rank, id, nullptr, 0);
    } else if (call.kind == Kind::kReduceScatter) {
      Reply(rank, id, output.data() + i * bytes, bytes);
    } else {
      Reply(rank, id, output.data(), output.size());
    }
  }
}

void Hub::Reply(int rank, uint64_t id, const std::byte* data, size_t bytes) {
  SendMessage(sockets_[rank].get(),
              {.type = MessageType::kReply, .id = id, .bytes = bytes}, data);
}

void Hub::Lost(int rank) {
  for (const Fd& socket : sockets_) {
    if (!socket.valid() || &socket == &sockets_[rank]) continue;
    SendMessage(socket.get(),
                {.type = MessageType::kLost, .id = static_cast<uint64_t>(rank)},
                nullptr);
  }
}

void Hub::Gone(int rank) {
  gone_.insert(rank);
  if (gone_.size() < ranks_) return;
  for (const Fd& socket : sockets_) {
    if (!socket.valid()) continue;
    SendMessage(socket.get(), {.type = MessageType::kAllGone}, nullptr);
  }
}

void Hub::Mismatch(int rank, const Call& call, int other, const Call& others) {
  const std::string text = "the ranks' calls do not match: rank " +
                           std::to_string(rank) + " calls " + Describe(call) +
                           ", rank " + std::to_string(other) + " calls " +
                           Describe(others);
  std::lock_guard lock(Process::Get().mismatch_mutex());
  for (const Fd& socket : sockets_) {
    if (!socket.valid()) continue;
    SendMessage(socket.get(),
                {.type = MessageType::kMismatch, .bytes = text.size()},
                text.data());
  }
  Illegal(text);
}

}  // namespace

bool StartHub(int ranks, std::string* name) {
  Fd listener = Listen(name);
  if (!listener.valid()) return false;
  StartDetached([fd = listener.Release(), ranks] {
    const Fd own(fd);
    const auto hub = std::make_shared<Hub>(ranks);
    for (int i = 0; i < ranks; ++i) {
      Fd socket(accept4(own.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.valid()) return;
      StartDetached(
          [hub, socket = socket.Release()] { hub->Serve(Fd(socket)); });
    }
  });
  return true;
}

}  // namespace maypole::nccl::fake
