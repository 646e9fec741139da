#include "tests/properties/spec/spec.h"

#include <algorithm>
#include <cstring>

#include "tests/properties/spec/draw.h"

namespace maypole::properties {
namespace {

std::string List(const std::vector<int64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i > 0 ? "," : "") + std::to_string(values[i]);
  }
  return out + "]";
}

std::string List(const std::vector<int>& values) {
  return List(std::vector<int64_t>(values.begin(), values.end()));
}

constexpr const char* kAspects[] = {"nothing", "shape",    "dimension", "dtype",
                                    "op",      "prescale", "postscale", "root"};

}  // namespace

Random RandomFor(uint64_t seed, uint64_t purpose) {
  std::seed_seq all{seed & 0xffffffff, seed >> 32, purpose};
  return Random(all);
}

std::vector<int> World::LocalSizes() const {
  if (!local_sizes.empty()) return local_sizes;
  std::vector<int> sizes;
  for (int node = 0; node < nodes; ++node) {
    sizes.push_back(ranks / nodes + (node < ranks % nodes ? 1 : 0));
  }
  return sizes;
}

int World::NodeOf(int rank) const {
  int node = 0;
  for (const int size : LocalSizes()) {
    if (rank < size) return node;
    rank -= size;
    ++node;
  }
  return node;
}

std::vector<std::vector<int>> UsualSets(const World& world) {
  const int n = world.ranks;
  std::vector<int> first_two, but_first, even, last_two;
  for (int r = 0; r < n; ++r) {
    if (r < 2) first_two.push_back(r);
    if (r > 0) but_first.push_back(r);
    if (r % 2 == 0) even.push_back(r);
    if (r >= n - 2) last_two.push_back(r);
  }
  std::vector<std::vector<int>> sets;
  for (const auto& set :
       {std::vector<int>{0}, first_two, but_first, even, last_two}) {
    if (set.empty() || static_cast<int>(set.size()) >= n) continue;
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) {
      sets.push_back(set);
    }
  }
  return sets;
}

int OperationSpec::PositionOf(int rank) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end() || *at != rank) return -1;
  return static_cast<int>(at - ranks.begin());
}

Signature OperationSpec::SignatureOf(int rank) const {
  Signature s;
  s.kind = kind;
  s.dtype = dtype;
  s.op = op;
  const auto& mine = shape[static_cast<size_t>(PositionOf(rank))];
  s.dims = static_cast<uint8_t>(mine.size());
  std::copy(mine.begin(), mine.end(), s.shape);
  if (kind == Kind::kBroadcast) s.root = root;
  s.prescale = prescale;
  s.postscale = postscale;
  return rank == odd_one ? Altered(s, aspect, ranks) : s;
}

uint64_t OperationSpec::Bytes(int rank) const {
  return SignatureOf(rank).Bytes();
}

std::string OperationSpec::Text() const {
  std::string out(maypole::Name(kind));
  out += " '" + (name.size() > 40 ? name.substr(0, 40) + "..." : name) + "' " +
         std::string(maypole::Name(dtype)) + " ";
  const bool reduces = Reduces(kind);
  if (reduces) out += std::string(maypole::Name(op)) + " ";
  const bool varies = Gathers(kind);
  for (size_t i = 0; i < (varies ? shape.size() : 1); ++i) {
    out += List(shape[i]);
    if (kind == Kind::kAlltoall) out += ":" + List(splits[i]);
  }
  if (kind == Kind::kBroadcast) out += " root " + std::to_string(root);
  if (equal_parts) out += " equal parts";
  if (prescale != 1.0) out += " prescale " + std::to_string(prescale);
  if (postscale != 1.0) out += " postscale " + std::to_string(postscale);
  if (in_place) out += " in place";
  if (arena) out += " arena";
  if (values == Values::kRounded) out += " rounded";
  if (values == Values::kAnyBits) out += " any bits";
  if (set != 0) {
    out += " set " + std::to_string(set) + " of ranks " + List(ranks);
  }
  for (const int rank : ranks) {
    if (IsAside(rank)) out += " joined: " + std::to_string(rank);
  }
  if (odd_one >= 0) {
    out += " mismatched by rank " + std::to_string(odd_one) + " (" +
           kAspects[static_cast<int>(aspect)] + ")";
  }
  if (group >= 0) out += " group " + std::to_string(group);
  return out + " phase " + std::to_string(phase);
}

std::string SetRequest::Text() const {
  std::string out = remove ? "removal of" : "request for";
  out += " process set " + std::to_string(set);
  for (const auto& ranks : asked) out += " " + List(ranks);
  return out + " phase " + std::to_string(phase);
}

}  // namespace maypole::properties
