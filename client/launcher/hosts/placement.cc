#include "client/launcher/hosts/placement.h"

#include <algorithm>

#include "client/launcher/process/announcement.h"
#include "common/finished_file.h"

namespace maypole::launcher {

std::string NodeName(int node) { return "node" + std::to_string(node); }

std::string JobId(const std::string& name, const std::string& random) {
  return name.empty() ? random.substr(0, 16) : name + "-" + random.substr(0, 8);
}

std::string FinishedFile(const std::string& directory, int process) {
  return directory + "/finished." + std::to_string(process);
}

bool IsOfAJob(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "MAYPOLE_RANK",       "MAYPOLE_SIZE",          "MAYPOLE_LOCAL_RANK",
      "MAYPOLE_LOCAL_SIZE", "MAYPOLE_CROSS_RANK",    "MAYPOLE_CROSS_SIZE",
      "MAYPOLE_JOB",        "MAYPOLE_TOKEN",         "MAYPOLE_AGENT",
      "MAYPOLE_NODE",       "MAYPOLE_START_TIMEOUT", "MAYPOLE_ELASTIC",
      "MAYPOLE_MIN_SIZE",   "MAYPOLE_MAX_SIZE",      "MAYPOLE_FUNCTION",
      "MAYPOLE_RESULT_FD",  kFinishedFileVariable};
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

namespace {

// Scripts written for Horovod may read these before init().
void AddHorovod(const NodeJob& job, const RankSurroundings& around,
                Variables* variables) {
  const std::string rest =
      around.python_path.empty() ? "" : ":" + around.python_path;
  if (job.elastic()) {
    variables->emplace_back("HOROVOD_ELASTIC", "1");
  } else {
    const Variables ours = *variables;  // MAYPOLE_RANK and its like
    for (const auto& [name, value] : ours) {
      variables->emplace_back("HOROVOD" + name.substr(name.find('_')), value);
    }
  }
  variables->emplace_back("PYTHONPATH", job.horovod_shim() + rest);
  variables->emplace_back("HOROVOD_HOSTNAME",
                          job.host().empty() ? "localhost" : job.host());
}

Variables PlaceVariables(const NodeJob& job, const RankSurroundings& around,
                         int rank, int local) {
  if (job.elastic()) {
    return {{"MAYPOLE_ELASTIC", "1"},
            {"MAYPOLE_MIN_SIZE", std::to_string(job.min_size())},
            {"MAYPOLE_MAX_SIZE", std::to_string(job.max_size())},
            {kFinishedFileVariable, FinishedFile(around.directory, rank)}};
  }
  return {{"MAYPOLE_RANK", std::to_string(rank)},
          {"MAYPOLE_SIZE", std::to_string(job.ranks())},
          {"MAYPOLE_LOCAL_RANK", std::to_string(local)},
          {"MAYPOLE_LOCAL_SIZE", std::to_string(job.local_size())},
          {"MAYPOLE_CROSS_RANK", std::to_string(job.node())},
          {"MAYPOLE_CROSS_SIZE", std::to_string(job.nodes())}};
}

// As torchrun sets them, for scripts that call torch.distributed's
// init_process_group().
void AddTorch(const NodeJob& job, int rank, int local, const IsSet& is_set,
              Variables* variables) {
  const std::string& store = job.torch_store();
  const size_t colon = store.rfind(':');
  if (colon == std::string::npos) return;
  variables->insert(variables->end(),
                    {{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(job.ranks())},
                     {"LOCAL_RANK", std::to_string(local)},
                     {"LOCAL_WORLD_SIZE", std::to_string(job.local_size())}});
  if (!is_set("MASTER_ADDR")) {
    variables->emplace_back("MASTER_ADDR", store.substr(0, colon));
  }
  if (!is_set("MASTER_PORT")) {
    variables->emplace_back("MASTER_PORT", store.substr(colon + 1));
  }
}

}  // namespace

Variables RankVariables(const NodeJob& job, const RankSurroundings& around,
                        int rank, int local, const IsSet& is_set) {
  Variables variables = PlaceVariables(job, around, rank, local);
  if (!job.horovod_shim().empty()) AddHorovod(job, around, &variables);
  variables.insert(variables.end(), {{"MAYPOLE_JOB", job.job()},
                                     {"MAYPOLE_TOKEN", job.token()},
                                     {"MAYPOLE_START_TIMEOUT",
                                      std::to_string(job.start_timeout_s())},
                                     {"MAYPOLE_NODE", NodeName(job.node())}});
  if (!around.agent.empty()) {
    variables.emplace_back("MAYPOLE_AGENT", around.agent);
  }
  if (!around.gpus.empty()) {
    variables.emplace_back(
        "CUDA_VISIBLE_DEVICES",
        around.gpus[static_cast<size_t>(local) % around.gpus.size()]);
  }
  AddTorch(job, rank, local, is_set, &variables);
  if (!job.function().empty()) {
    variables.emplace_back("MAYPOLE_FUNCTION", job.function());
    variables.emplace_back("MAYPOLE_RESULT_FD", std::to_string(kAnnounceFd));
  }
  // Python buffers output to a pipe; a rank's output must appear at once.
  if (!is_set("PYTHONUNBUFFERED")) {
    variables.emplace_back("PYTHONUNBUFFERED", "1");
  }
  // If each rank used all cores, all ranks would be slow.
  if (!is_set("OMP_NUM_THREADS")) {
    variables.emplace_back(
        "OMP_NUM_THREADS",
        std::to_string(std::max(1, around.usable_cores / around.ranks_here)));
  }
  return variables;
}

}  // namespace maypole::launcher
