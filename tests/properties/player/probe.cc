#include "tests/properties/player/probe.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace maypole::properties {
namespace {

constexpr uint32_t kNoSuchSet = 1000000;

struct Caller {
  int rank;
  int ranks;
  const std::vector<KnownSet>& sets;
  Random& random;
};

struct WrongCall {
  const char* what;
  // Makes a right request wrong; false: it cannot be made here.
  std::function<bool(Caller&, Request*)> spoil;
};

bool Gather(Kind kind, Request* r) {
  r->signature.kind = kind;
  r->output = nullptr;
  return true;
}

const std::vector<WrongCall>& WrongCalls() {
  static const auto& calls = *new std::vector<WrongCall>{
      {"adasum of integers",
       [](Caller&, Request* r) {
         r->signature.dtype = DType::kInt32;
         r->signature.op = Op::kAdasum;
         return true;
       }},
      {"average of bool",
       [](Caller&, Request* r) {
         r->signature.dtype = DType::kBool;
         r->signature.op = Op::kAverage;
         return true;
       }},
      {"factor for bool",
       [](Caller&, Request* r) {
         r->signature.dtype = DType::kBool;
         r->signature.prescale = 0.5;
         return true;
       }},
      {"negative dimension",
       [](Caller&, Request* r) {
         r->signature.shape[0] = -1;
         return true;
       }},
      {"absurd size",
       [](Caller&, Request* r) {
         r->signature.dims = 2;
         r->signature.shape[0] = r->signature.shape[1] = int64_t{1} << 40;
         return true;
       }},
      {"nine dimensions",
       [](Caller&, Request* r) {
         r->signature.dims = kMaxDims + 1;
         return true;
       }},
      {"name too long",
       [](Caller&, Request* r) {
         r->name.assign(kMaxNameBytes + 1, 'x');
         return true;
       }},
      {"unknown dtype",
       [](Caller&, Request* r) {
         r->signature.dtype = static_cast<DType>(kDTypes);
         return true;
       }},
      {"gathered scalar",
       [](Caller&, Request* r) {
         r->signature.dims = 0;
         return Gather(Kind::kAllgather, r);
       }},
      {"scattered scalar",
       [](Caller&, Request* r) {
         r->signature.kind = Kind::kReducescatter;
         r->signature.dims = 0;
         return true;
       }},
      {"scattered min",
       [](Caller&, Request* r) {
         r->signature.kind = Kind::kReducescatter;
         r->signature.op = Op::kMin;
         return true;
       }},
      {"splits of another sum",
       [](Caller& c, Request* r) {
         r->splits.assign(static_cast<size_t>(c.ranks), 0);
         r->splits[0] = r->signature.shape[0] + 1;
         return Gather(Kind::kAlltoall, r);
       }},
      {"too many splits",
       [](Caller& c, Request* r) {
         r->splits.assign(static_cast<size_t>(c.ranks) + 1, 0);
         r->splits[0] = r->signature.shape[0];
         return Gather(Kind::kAlltoall, r);
       }},
      {"negative split",
       [](Caller& c, Request* r) {
         if (c.ranks < 2) return false;
         r->splits.assign(static_cast<size_t>(c.ranks), 0);
         r->splits[0] = -1;
         r->splits[1] = r->signature.shape[0] + 1;
         return Gather(Kind::kAlltoall, r);
       }},
      {"splits whose sum wraps",
       [](Caller& c, Request* r) {
         if (c.ranks < 3) return false;
         r->splits.assign(static_cast<size_t>(c.ranks), 0);
         r->splits[0] = r->splits[1] = INT64_MAX;
         r->splits[2] = r->signature.shape[0] + 2;
         return Gather(Kind::kAlltoall, r);
       }},
      {"parts that cannot be equal",
       [](Caller& c, Request* r) {
         if (c.ranks < 2) return false;
         r->signature.shape[0] = c.ranks + 1;
         return Gather(Kind::kAlltoall, r);
       }},
      {"root that is no rank",
       [](Caller& c, Request* r) {
         r->signature.kind = Kind::kBroadcast;
         r->signature.root = c.ranks;
         return true;
       }},
      {"root that is no member",
       [](Caller& c, Request* r) {
         for (const KnownSet& set : c.sets) {
           const auto has = [&](int x) {
             return std::find(set.ranks.begin(), set.ranks.end(), x) !=
                    set.ranks.end();
           };
           for (int root = 0; has(c.rank) && root < c.ranks; ++root) {
             if (has(root)) continue;
             r->signature.kind = Kind::kBroadcast;
             r->signature.process_set = set.id;
             r->signature.root = root;
             return true;
           }
         }
         return false;
       }},
      {"process set without this rank",
       [](Caller& c, Request* r) {
         for (const KnownSet& set : c.sets) {
           if (std::find(set.ranks.begin(), set.ranks.end(), c.rank) ==
               set.ranks.end()) {
             r->signature.process_set = set.id;
             return true;
           }
         }
         return false;
       }},
      {"unknown process set",
       [](Caller&, Request* r) {
         r->signature.process_set = kNoSuchSet;
         return true;
       }},
  };
  return calls;
}

bool IsRefusal(const Status& s) {
  switch (s.code()) {
    case Code::kInvalidArgument:
    case Code::kUnimplemented:
    case Code::kNotFound:
    case Code::kAlreadyExists:
      return !s.message().empty();
    default:
      return false;
  }
}

std::string Refusal(const Status& s, const std::string& what) {
  if (IsRefusal(s)) return "";
  return what + (s.ok() ? ": it was not refused"
                        : ": refused with code " +
                              std::to_string(static_cast<int>(s.code())) +
                              ": '" + s.message() + "'");
}

float probe_memory[64];

Request RightRequest(Random& random, int number) {
  Request r;
  if (OneIn(random, 2)) r.name = "probe" + std::to_string(number);
  r.signature.kind = Kind::kAllreduce;
  r.signature.dtype = DType::kFloat32;
  r.signature.dims = 1;
  r.signature.shape[0] = 2;
  r.input = probe_memory;
  r.output = probe_memory + 8 * number;
  return r;
}

std::string TryNameTwice(Client* client, Random& random) {
  std::vector<Request> group{RightRequest(random, 0), RightRequest(random, 1)};
  group[0].name = group[1].name = "twice";
  int64_t handles[2];
  const Status s = client->SubmitGroup(std::move(group), handles);
  if (s.code() == Code::kAlreadyExists &&
      s.message().find("none of") == std::string::npos) {
    return "probe: a name twice: refused for another reason: " + s.message();
  }
  return Refusal(s, "probe: a name twice in a group");
}

}  // namespace

std::string TryWrongCall(Client* client, int rank, int ranks,
                         const std::vector<KnownSet>& sets, int patience_ms,
                         Random& random) {
  if (OneIn(random, 8)) return TryNameTwice(client, random);
  Caller caller{rank, ranks, sets, random};
  const auto& calls = WrongCalls();
  const WrongCall& call = calls[Below(random, calls.size())];
  Request wrong = RightRequest(random, 0);
  if (!call.spoil(caller, &wrong)) return "";
  const std::string what = std::string("probe: ") + call.what;
  if (OneIn(random, 3)) {
    // A right one before it in a group: neither may be accepted.
    std::vector<Request> group{RightRequest(random, 1), wrong};
    int64_t handles[2];
    return Refusal(client->SubmitGroup(std::move(group), handles),
                   what + " in a group");
  }
  int64_t handle = 0;
  Status s = client->Submit(std::move(wrong), &handle);
  if (s.ok()) {
    s = client->Wait(handle, patience_ms);
    (void)client->Release(handle);
  }
  return Refusal(s, what);
}

}  // namespace maypole::properties
