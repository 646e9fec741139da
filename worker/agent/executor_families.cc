#include "worker/agent/executor_families.h"

#include <array>
#include <bit>
#include <optional>
#include <set>
#include <string_view>

#include "common/gpu/gpu.h"
#include "common/metrics/process.h"

namespace maypole::worker {
namespace {

double Number(const StatsPage::Counter& c) {
  return static_cast<double>(c.load(std::memory_order_relaxed));
}

double Seconds(const StatsPage::Counter& nanoseconds) {
  return Number(nanoseconds) * 1e-9;
}

Families::Labels With(Families::Labels labels, const char* name,
                      std::string_view value) {
  labels.push_back({name, std::string(value)});
  return labels;
}

template <typename StatsHistogram>
void AddHistogram(const char* name, const char* help,
                  const Families::Labels& job, const StatsHistogram& from,
                  double unit, Families* all) {
  std::array<uint64_t, StatsHistogram::bounds.size() + 1> counts;
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = from.counts[i].load();
  all->Histogram(name, help, job, StatsHistogram::bounds, counts,
                 Number(from.sum) * unit);
}

void AddOperations(const Families::Labels& job, const StatsPage& page,
                   Families* all) {
  for (int k = 0; k < kKinds; ++k) {
    if (static_cast<Kind>(k) == Kind::kJoin) continue;  // not an operation
    const auto kind = With(job, "kind", Name(static_cast<Kind>(k)));
    all->Counter(
        "maypole_executor_operations_total",
        "Collectives of the job: completed (one node), issued (several nodes).",
        kind, Number(page.operations[k]));
    all->Counter("maypole_executor_operation_bytes_total",
                 "Bytes of the results of these operations.", kind,
                 Number(page.operation_bytes[k]));
  }
  all->Counter("maypole_executor_runs_total",
               "Negotiated runs issued (fused operations are one run).", job,
               Number(page.runs));
  AddHistogram("maypole_fused_operations", "Operations per negotiated run.",
               job, page.run_operations, 1, all);
  all->Counter("maypole_presence_operations_total",
               "Operations that were reported to the coordinator.", job,
               Number(page.presence));
  all->Counter("maypole_steps_total",
               "How often the names of the job's operations have come again.",
               job, Number(page.steps));
  all->Counter(
      "maypole_small_operations_total",
      "Operations whose inputs executors have sent each other with the "
      "news that they are ready.",
      job, Number(page.small_operations));
  AddHistogram(
      "maypole_presence_seconds",
      "Time from an operation's presence on this node until it is issued.", job,
      page.presence_ns, 1e-9, all);
  AddHistogram(
      "maypole_run_seconds",
      "Time from the coordinator's Execute until the last chunk is exchanged.",
      job, page.run_ns, 1e-9, all);
  // Families keeps the name as its key.
  static constexpr char kNetwork[] = "maypole_network_bytes_total";
  static constexpr char kNetworkHelp[] = "Payload exchanged with other nodes.";
  all->Counter(kNetwork, kNetworkHelp, With(job, "direction", "sent"),
               Number(page.network_sent));
  all->Counter(kNetwork, kNetworkHelp, With(job, "direction", "received"),
               Number(page.network_received));
}

void AddWaits(const Families::Labels& job, const StatsPage& page,
              Families* all) {
  for (int i = 0; i < kWaitFors; ++i) {
    const auto what = With(job, "for", Name(static_cast<WaitFor>(i)));
    all->Counter(
        "maypole_waits_total",
        "Waits of ranks in which they slept, by what they slept for first.",
        what, Number(page.waits[i]));
    all->Counter("maypole_wait_seconds_total",
                 "Time that ranks slept in waits, by what they slept for.",
                 what, Seconds(page.wait_ns[i]));
  }
  std::set<uint64_t> shown;  // no rank is shown twice, whatever the page says
  for (int i = 0; i < kMaxLocalRanks; ++i) {
    const uint64_t number = page.rank_number[i].load();
    const double late = static_cast<double>(page.late_ns[i].load()) * 1e-9;
    // Skip the entry if a new epoch has just changed its rank.
    if (number == 0 || page.rank_number[i].load() != number) continue;
    if (number > kMaxRanks || !shown.insert(number).second) continue;
    all->Counter("maypole_rank_wait_seconds_total",
                 "Time that the rank has slept in waits for operations.",
                 With(job, "rank", std::to_string(number - 1)),
                 Seconds(page.waited_ns[i]));
    all->Counter("maypole_rank_late_seconds_total",
                 "Time that other ranks of the node have slept for this one, "
                 "summed over these ranks.",
                 With(job, "rank", std::to_string(number - 1)), late);
  }
}

void AddEpochs(const Families::Labels& job, const StatsPage& page,
               Families* all) {
  for (int k = 0; k < kErrorKinds; ++k) {
    all->Counter("maypole_errors_total", "Errors by kind.",
                 With(job, "kind", Name(static_cast<ErrorKind>(k))),
                 Number(page.errors[k]));
  }
  all->Counter("maypole_reconnects_total",
               "Streams to the coordinator that were resumed.", job,
               Number(page.reconnects));
  all->Counter("maypole_moved_connections_total",
               "Connections to other nodes that have lost their network and "
               "went on over another one.",
               job, Number(page.moved_connections));
  all->Counter("maypole_epochs_total", "Epochs started.", job,
               Number(page.epochs));
  all->Gauge("maypole_local_ranks", "Ranks of the running epoch on this node.",
             job, Number(page.local_ranks));
  all->Gauge("maypole_peer_nodes", "Other nodes of the running epoch.", job,
             Number(page.peer_nodes));
  all->Gauge("maypole_encrypted_nodes",
             "Of these, nodes to which all connections are encrypted.", job,
             Number(page.encrypted_nodes));
  all->Gauge("maypole_ucx_nodes",
             "Of these, nodes to which data goes over UCX.", job,
             Number(page.ucx_nodes));
  all->Gauge("maypole_wire_bytes_per_second",
             "What the network carries to one neighbour and back, measured at "
             "the start of the running epoch; 0 with one node.",
             job, Number(page.wire_bytes_per_s));
  all->Gauge("maypole_board_bytes",
             "Size of the job's shared memory, without its arenas.", job,
             Number(page.board_bytes));
  all->Gauge("maypole_arena_bytes", "Memory that the job's arena tensors use.",
             job, Number(page.arena_bytes));
  all->Gauge("maypole_state_bytes",
             "Memory of the states that the executor keeps for its ranks.", job,
             Number(page.state_bytes));
}

void AddGpus(const Families::Labels& job, const StatsPage& page,
             Families* all) {
  const char* const sites[] = {"host", "agent", "client"};  // as RunSite
  for (size_t i = 0; i < std::size(sites); ++i) {
    const uint64_t operations = page.gpu_site_operations[i];
    if (operations == 0) continue;
    all->Counter("maypole_gpu_site_operations_total",
                 "Operations on CUDA tensors with a place on a GPU, by where "
                 "they ran.",
                 With(job, "site", sites[i]), static_cast<double>(operations));
  }
  std::set<std::string> shown;  // as above
  const uint64_t count = page.gpu_count.load(std::memory_order_acquire);
  for (uint64_t i = 0; i < count && i < kMaxGpus; ++i) {
    const GpuStats& gpu = page.gpus[i];
    const std::string uuid =
        cuda::UuidText(std::bit_cast<cuda::CUuuid>(gpu.uuid()));
    if (!shown.insert(uuid).second) continue;
    const auto labels = With(job, "gpu", uuid);
    all->Gauge("maypole_gpu_memory_bytes",
               "GPU memory that ranks share with the job's executor.", labels,
               Number(gpu.memory_bytes));
    all->Counter("maypole_gpu_operations_total",
                 "Operations that ran on the GPU.", labels,
                 Number(gpu.operations));
    all->Counter("maypole_gpu_operation_bytes_total",
                 "Bytes of the ranks' tensors in these operations.", labels,
                 Number(gpu.operation_bytes));
    all->Counter("maypole_gpu_operation_seconds_total",
                 "Time from the start of these operations until their end.",
                 labels, Seconds(gpu.operation_ns));
    all->Counter("maypole_gpu_wait_seconds_total",
                 "Time that runs of operations on the GPU waited for a "
                 "communicator, or for other runs, before they began.",
                 labels, Seconds(gpu.wait_ns));
    all->Counter(
        "maypole_gpu_nccl_seconds_total",
        "Time that NCCL took for runs on the GPU, with their waits for "
        "other GPUs.",
        labels, Seconds(gpu.nccl_ns));
  }
}

}  // namespace

void AddExecutor(const ExecutorFacts& facts, const StatsPage& page,
                 Families* all) {
  const Families::Labels job = {{"job", facts.job},
                                {"uid", std::to_string(facts.uid)}};
  AddOperations(job, page, all);
  AddWaits(job, page, all);
  AddEpochs(job, page, all);
  AddGpus(job, page, all);
  const std::optional<ProcessUse> use = ReadProcessUse(facts.pid);
  if (!use) return;
  all->Gauge("maypole_executor_memory_bytes",
             "Resident memory of the job's executor.", job,
             static_cast<double>(use->resident_bytes));
  all->Counter("maypole_executor_cpu_seconds_total",
               "User and system CPU time of the job's executor.", job,
               use->cpu_seconds);
}

}  // namespace maypole::worker
