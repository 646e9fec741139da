#include "worker/core/operations/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

// Appends a block; merges it with the previous one if both have the same source
// and destination.
void AddBlock(const NodeBlock& block, RunSpec* spec) {
  if (block.begin == block.end) return;
  if (!spec->blocks.empty()) {
    NodeBlock& last = spec->blocks.back();
    if (last.from == block.from && last.to == block.to &&
        last.end == block.begin) {
      last.end = block.end;
      return;
    }
  }
  spec->blocks.push_back(block);
}

// Adds the bytes of `rows` rows to *end.
absl::Status AddRows(Kind kind, int rank, int64_t rows, uint64_t row,
                     uint64_t* end) {
  if (rows < 0 || (row > 0 && static_cast<uint64_t>(rows) >
                                  (kMaxTensorBytes - *end) / row)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors of an ", std::string(Name(kind)),
                     " may have 2^44 bytes in total; rank ", rank, " adds ",
                     rows, " rows of ", row, " bytes"));
  }
  *end += static_cast<uint64_t>(rows) * row;
  return absl::OkStatus();
}

}  // namespace

absl::Status Misfit(const proto::Run& run, const std::string& what) {
  return absl::InternalError(absl::StrCat(
      "the coordinator's run ", run.run(), " does not fit this node: ", what,
      "; this is a bug in Maypole, please report it with the logs"));
}

void LayOutScatter(const NodeSet& set, const Signature& s, uint64_t offset,
                   RunSpec* spec) {
  const uint64_t row = s.RowBytes();
  for (int i = 0; i < set.size(); ++i) {
    const int64_t rows = ScatteredRows(s, set.size(), i);
    const uint64_t end = offset + static_cast<uint64_t>(rows) * row;
    AddBlock({0, set.node_of[static_cast<size_t>(i)], offset, end}, spec);
    offset = end;
  }
}

absl::Status LayOutGather(const proto::Run& run, const NodeSet& set,
                          uint32_t job_size, const Signature& s,
                          RunSpec* spec) {
  if (spec->operations.size() != 1 ||
      static_cast<uint32_t>(run.first_dims_size()) != job_size) {
    return Misfit(run, absl::StrCat("an allgather with ", run.operations_size(),
                                    " operations and ", run.first_dims_size(),
                                    " first dimensions"));
  }
  spec->bytes = 0;
  spec->first_dims.assign(job_size, 0);
  for (size_t i = 0; i < set.ranks.size(); ++i) {
    const int rank = set.ranks[i];
    const int64_t rows = run.first_dims(rank);
    const uint64_t begin = spec->bytes;
    if (absl::Status status =
            AddRows(s.kind, rank, rows, s.RowBytes(), &spec->bytes);
        !status.ok()) {
      return status;
    }
    spec->first_dims[static_cast<size_t>(rank)] = rows;
    AddBlock({set.node_of[i], kAllNodes, begin, spec->bytes}, spec);
  }
  return absl::OkStatus();
}

absl::Status LayOutAlltoall(const proto::Run& run, const SlotEntry& entry,
                            uint32_t node, RunSpec* spec) {
  const NodeSet& set = *entry.set;
  const size_t n = set.ranks.size();
  if (spec->operations.size() != 1 || n > size_t{kMaxAlltoallRanks} ||
      static_cast<size_t>(run.splits_size()) != n * n) {
    return Misfit(
        run, absl::StrCat("an alltoall with ", run.operations_size(),
                          " operations and ", run.splits_size(), " splits"));
  }
  const uint64_t row = entry.signatures.front().RowBytes();
  spec->splits.assign(run.splits().begin(), run.splits().end());
  spec->bytes = 0;
  auto reported = entry.splits.begin();
  for (size_t i = 0; i < n; ++i) {
    const auto sent = spec->splits.begin() + static_cast<ptrdiff_t>(i * n);
    if (set.node_of[i] == node) {
      if (!std::equal(sent, sent + static_cast<ptrdiff_t>(n), reported)) {
        return Misfit(
            run, absl::StrCat("it has other splits of rank ", set.ranks[i]));
      }
      reported += static_cast<ptrdiff_t>(n);
    }
    for (size_t j = 0; j < n; ++j) {
      const uint64_t begin = spec->bytes;
      if (absl::Status status =
              AddRows(entry.kind, set.ranks[i], sent[static_cast<ptrdiff_t>(j)],
                      row, &spec->bytes);
          !status.ok()) {
        return status;
      }
      const NodeBlock block{set.node_of[i], set.node_of[j], begin, spec->bytes};
      const bool ours = block.from == node || block.to == node;
      if (ours && block.from != block.to) AddBlock(block, spec);
    }
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
