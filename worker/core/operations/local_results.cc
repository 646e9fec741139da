#include "worker/core/operations/local_results.h"

#include <bit>

namespace maypole::worker {

void LocalResults::Expect(const Key& key, ResultOperation operation) {
  const auto [it, is_new] = undecided_.try_emplace(key);
  if (!is_new) return;
  it->second.missing = operation.set->mask() & ~gone_;
  it->second.operation = std::move(operation);
  it->second.age = ++last_age_;
  by_age_[last_age_] = key;
  if (undecided_.size() > limit_) {
    Decide(undecided_.find(by_age_.begin()->second));
  }
}

void LocalResults::Add(const Key& key, uint32_t local,
                       const session::ResultRecord& record) {
  auto it = undecided_.lower_bound({key.first, 0});
  while (it != undecided_.end() && it->first < key) it = Remove(it, local);
  if (it == undecided_.end() || it->first != key) return;
  Undecided& entry = it->second;
  if ((entry.missing >> local & 1) == 0) return;
  if (record.bytes != session::ResultRecord::kNoResult) {
    auto same = entry.copies.begin();
    while (same != entry.copies.end() &&
           (same->checksum != record.checksum || same->bytes != record.bytes)) {
      ++same;
    }
    if (same == entry.copies.end()) {
      same = entry.copies.insert(same, {record.checksum, record.bytes, 0});
    }
    same->locals |= uint64_t{1} << local;
  }
  Remove(it, local);
}

void LocalResults::ForgetNumbered() {
  uint64_t lost = std::erase_if(undecided_, [this](const auto& entry) {
    if (entry.second.operation.id == 0) return false;
    by_age_.erase(entry.second.age);
    return true;
  });
  proto::Results kept;
  for (proto::Result& result : *message_.mutable_results()) {
    if (result.id() == 0) {
      *kept.add_results() = std::move(result);
    } else {
      ++lost;
    }
  }
  message_.mutable_results()->Swap(kept.mutable_results());
  bytes_ = 0;
  for (const proto::Result& r : message_.results()) bytes_ += r.ByteSizeLong();
  CountLost(lost);
}

void LocalResults::Forget(uint32_t local) {
  gone_ |= uint64_t{1} << local;
  for (auto it = undecided_.begin(); it != undecided_.end();) {
    it = Remove(it, local);
  }
}

LocalResults::Table::iterator LocalResults::Remove(Table::iterator entry,
                                                   uint32_t local) {
  entry->second.missing &= ~(uint64_t{1} << local);
  return entry->second.missing == 0 ? Decide(entry) : std::next(entry);
}

LocalResults::Table::iterator LocalResults::Decide(Table::iterator it) {
  const Undecided& entry = it->second;
  const bool negotiated = entry.operation.id != 0;
  differs_ = differs_ || entry.copies.size() > 1;
  if (negotiated || entry.copies.size() > 1) {
    Report(entry);
  } else if (entry.missing != 0) {
    CountLost(1);
  } else if (!entry.copies.empty() &&
             std::popcount(entry.copies.front().locals) > 1) {
    message_.set_equal(message_.equal() + 1);
  }
  by_age_.erase(entry.age);
  return undecided_.erase(it);
}

void LocalResults::Report(const Undecided& entry) {
  proto::Result* result = message_.add_results();
  *result->mutable_identity() = entry.operation.identity;
  result->set_id(entry.operation.id);
  result->set_generation(entry.operation.generation);
  const NodeSet& set = *entry.operation.set;
  for (const Copies& c : entry.copies) {
    proto::ResultCopies* copies = result->add_copies();
    copies->set_checksum(c.checksum);
    copies->set_bytes(c.bytes);
    for (size_t i = 0; i < set.locals.size(); ++i) {
      if ((c.locals >> set.locals[i] & 1) == 0) continue;
      copies->add_ranks(static_cast<uint32_t>(set.here[i]));
    }
  }
  bytes_ += result->ByteSizeLong();
}

std::optional<proto::Results> LocalResults::Take() {
  if (empty()) return std::nullopt;
  bytes_ = 0;
  differs_ = false;
  return std::exchange(message_, proto::Results());
}

}  // namespace maypole::worker
