#include "coordinator/core/ordering/run_issuer.h"

#include <algorithm>

#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/ordering/fusion.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

RunIssuer::RunIssuer(EpochNodes* nodes, const ProcessSets* sets,
                     OperationTable* table, Steps* steps,
                     uint64_t fusion_threshold)
    : nodes_(*nodes),
      sets_(*sets),
      table_(*table),
      steps_(*steps),
      fusion_threshold_(fusion_threshold),
      sent_(nodes->size(), 0) {}

void RunIssuer::Issue(Time now, const Release& release) {
  Runs runs;
  for (const Release::Part& part : release.parts) {
    nodes_.Report(BucketRan{part.end});
    AddRuns(now, part.operations, &runs);
  }
  AddRuns(now, release.loose, &runs);
  Send(runs);
}

void RunIssuer::AddRuns(Time now, const std::vector<ReadyOperation>& ready,
                        Runs* runs) {
  for (const std::vector<size_t>& run : Fuse(ready, fusion_threshold_)) {
    runs->emplace_back(table_.Find(ready[run.front()].id)->set,
                       MakeRun(ready, run));
    nodes_.Report(RunIssued{run.size()});
    std::vector<const ReadyOperation*> together;
    for (const size_t i : run) together.push_back(&ready[i]);
    steps_.OnRun(together);
  }
  for (const ReadyOperation& r : ready) {
    nodes_.Report(
        OperationIssued{r.signature.kind, r.bytes, now - r.first_present});
    NegotiatedOperation* const op = table_.Find(r.id);
    op->last = r.signature;
    table_.Settle(op);
  }
  operations_ += ready.size();
}

proto::Run RunIssuer::MakeRun(const std::vector<ReadyOperation>& ready,
                              const std::vector<size_t>& run) {
  const ReadyOperation& first = ready[run.front()];
  proto::Run m;
  ++runs_;
  m.set_decision(nodes_.NextDecision());
  m.set_process_set(table_.Find(first.id)->set->id);
  m.set_inputs_sent(std::ranges::all_of(
      run, [&ready](size_t i) { return ready[i].inputs_sent; }));
  for (const size_t i : run) {
    NegotiatedOperation* op = table_.Find(ready[i].id);
    proto::RunOperation* o = m.add_operations();
    o->set_id(op->id);
    o->set_generation(ready[i].generation);
    if (!op->told) *o->mutable_identity() = op->identity;
    op->told = true;
  }
  m.mutable_first_dims()->Assign(first.first_dims.begin(),
                                 first.first_dims.end());
  m.mutable_splits()->Assign(first.splits.begin(), first.splits.end());
  m.set_communicator(first.communicator);
  m.mutable_member_gpus()->Assign(first.member_gpus.begin(),
                                  first.member_gpus.end());
  return m;
}

// Nodes with the same runs and numbers, normally all, share their messages.
void RunIssuer::Send(const Runs& runs) {
  std::vector<size_t> shared, mine;
  uint64_t first = 0;
  std::vector<Outgoing> messages;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    mine.clear();
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i].first->by_node[node].empty()) mine.push_back(i);
    }
    if (mine.empty()) continue;
    if (mine != shared || first != sent_[node] + 1) {
      shared = mine;
      first = sent_[node] + 1;
      messages = Executes(runs, mine, first);
    }
    sent_[node] += mine.size();
    for (const Outgoing& m : messages) nodes_.Send(node, m);
  }
}

std::vector<Outgoing> RunIssuer::Executes(const Runs& runs,
                                          const std::vector<size_t>& mine,
                                          uint64_t first) const {
  std::vector<Outgoing> messages;
  proto::CoordinatorMessage message;
  size_t bytes = 0;
  for (const size_t i : mine) {
    proto::Run* m = message.mutable_execute()->add_runs();
    *m = runs[i].second;
    m->set_run(first++);
    bytes += m->ByteSizeLong();
    if (bytes < kMaxExecuteBytes) continue;
    messages.emplace_back(message);
    message.Clear();
    bytes = 0;
  }
  if (message.has_execute()) messages.emplace_back(message);
  return messages;
}

void RunIssuer::Fail(NegotiatedOperation* op, const absl::Status& status) {
  const uint64_t decision = nodes_.NextDecision();
  for (size_t i = 0; i < op->nodes.size(); ++i) {
    const NodePresence& p = op->nodes[i];
    if (p.present) FailOn(i, *op, p.generation, status, decision);
  }
  table_.Settle(op);
}

void RunIssuer::FailOn(size_t node, const NegotiatedOperation& op,
                       uint32_t generation, const absl::Status& status,
                       uint64_t decision) {
  proto::CoordinatorMessage message;
  proto::OperationFailed* m = message.mutable_operation_failed();
  m->set_id(op.id);
  *m->mutable_identity() = op.identity;
  m->set_generation(generation);
  m->set_code(static_cast<int>(status.code()));
  m->set_message(Cut(status.message(), kMaxErrorBytes));
  m->set_decision(decision);
  nodes_.Send(node, message);
}

bool RunIssuer::Concerns(size_t node, uint32_t process_set) const {
  const RankSet* set = sets_.FindEver(process_set);
  return set != nullptr && !set->by_node[node].empty();
}

void RunIssuer::Reissue(size_t node, const proto::Decision& decision) {
  proto::CoordinatorMessage message;
  switch (decision.what_case()) {
    case proto::Decision::kRun: {
      if (!Concerns(node, decision.run().process_set())) return;
      proto::Run* run = message.mutable_execute()->add_runs();
      *run = decision.run();
      run->set_run(++sent_[node]);
      break;
    }
    case proto::Decision::kOperationFailed:
      // A node that has not reported the operation ignores it.
      if (!Concerns(node,
                    decision.operation_failed().identity().process_set())) {
        return;
      }
      *message.mutable_operation_failed() = decision.operation_failed();
      break;
    case proto::Decision::kSetReply:
      *message.mutable_set_reply() = decision.set_reply();
      break;
    default:
      *message.mutable_join_reply() = decision.join_reply();
      break;
  }
  nodes_.Send(node, message);
}

void RunIssuer::FillStatus(proto::JobStatus* status) const {
  status->set_runs(runs_);
  status->set_operations(operations_);
}

}  // namespace maypole::coordinator
