#include "client/launcher/hosts/placement.h"

#include <algorithm>

#include "client/launcher/process/announcement.h"
#include "common/finished_file.h"

namespace maypole::launcher {

std::vector<int> SpreadEvenly(int ranks, int nodes) {
  std::vector<int> by_node;
  for (int node = 0; node < nodes; ++node) {
    by_node.push_back(ranks / nodes + (node < ranks % nodes ? 1 : 0));
  }
  return by_node;
}

std::vector<Place> PlaceRanks(const std::vector<int>& ranks_by_node) {
  std::vector<Place> places;
  for (size_t node = 0; node < ranks_by_node.size(); ++node) {
    for (int local = 0; local < ranks_by_node[node]; ++local) {
      places.push_back({.rank = static_cast<int>(places.size()),
                        .node = static_cast<int>(node),
                        .local_rank = local,
                        .local_size = ranks_by_node[node]});
    }
  }
  return places;
}

std::string NodeName(int node) { return "node" + std::to_string(node); }

std::string JobId(const std::string& name, const std::string& random) {
  return name.empty() ? random.substr(0, 16) : name + "-" + random.substr(0, 8);
}

std::string FinishedFile(const std::string& directory, int process) {
  return directory + "/finished." + std::to_string(process);
}

namespace {

// Scripts for Horovod may read these before init().
void AddHorovod(const JobEnvironment& job, const Place& place,
                Variables* variables) {
  const std::string rest = job.python_path.empty() ? "" : ":" + job.python_path;
  Variables added = {{"PYTHONPATH", job.horovod_shim + rest},
                     {"HOROVOD_HOSTNAME", job.host}};
  if (job.elastic) {
    added.emplace_back("HOROVOD_ELASTIC", "1");
  } else {
    added.insert(added.end(),
                 {{"HOROVOD_RANK", std::to_string(place.rank)},
                  {"HOROVOD_SIZE", std::to_string(job.ranks)},
                  {"HOROVOD_LOCAL_RANK", std::to_string(place.local_rank)},
                  {"HOROVOD_LOCAL_SIZE", std::to_string(place.local_size)},
                  {"HOROVOD_CROSS_RANK", std::to_string(place.node)},
                  {"HOROVOD_CROSS_SIZE", std::to_string(job.nodes)}});
  }
  variables->insert(variables->end(), added.begin(), added.end());
}

Variables PlaceVariables(const JobEnvironment& job, const Place& place) {
  if (job.elastic) {
    return {{"MAYPOLE_ELASTIC", "1"},
            {"MAYPOLE_MIN_SIZE", std::to_string(job.min_size)},
            {"MAYPOLE_MAX_SIZE", std::to_string(job.max_size)},
            {kFinishedFileVariable, FinishedFile(job.directory, place.rank)}};
  }
  return {{"MAYPOLE_RANK", std::to_string(place.rank)},
          {"MAYPOLE_SIZE", std::to_string(job.ranks)},
          {"MAYPOLE_LOCAL_RANK", std::to_string(place.local_rank)},
          {"MAYPOLE_LOCAL_SIZE", std::to_string(place.local_size)},
          {"MAYPOLE_CROSS_RANK", std::to_string(place.node)},
          {"MAYPOLE_CROSS_SIZE", std::to_string(job.nodes)}};
}

// As torchrun sets them, for scripts that call torch.distributed's
// init_process_group().
void AddTorch(const JobEnvironment& job, const Place& place,
              const IsSet& is_set, Variables* variables) {
  const size_t colon = job.torch_store.rfind(':');
  if (colon == std::string::npos) return;
  variables->insert(variables->end(),
                    {{"RANK", std::to_string(place.rank)},
                     {"WORLD_SIZE", std::to_string(job.ranks)},
                     {"LOCAL_RANK", std::to_string(place.local_rank)},
                     {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)}});
  if (!is_set("MASTER_ADDR")) {
    variables->emplace_back("MASTER_ADDR", job.torch_store.substr(0, colon));
  }
  if (!is_set("MASTER_PORT")) {
    variables->emplace_back("MASTER_PORT", job.torch_store.substr(colon + 1));
  }
}

}  // namespace

Variables RankVariables(const JobEnvironment& job, const Place& place,
                        const IsSet& is_set) {
  Variables variables = PlaceVariables(job, place);
  variables.insert(variables.end(), {
                                        {"MAYPOLE_JOB", job.job},
                                        {"MAYPOLE_TOKEN", job.token},
                                        {"MAYPOLE_START_TIMEOUT",
                                         std::to_string(job.start_timeout_s)},
                                        {"MAYPOLE_NODE", NodeName(place.node)},
                                    });
  if (!job.agent.empty()) variables.emplace_back("MAYPOLE_AGENT", job.agent);
  if (!job.gpus.empty()) {
    variables.emplace_back(
        "CUDA_VISIBLE_DEVICES",
        job.gpus[static_cast<size_t>(place.local_rank) % job.gpus.size()]);
  }
  if (!job.horovod_shim.empty()) AddHorovod(job, place, &variables);
  AddTorch(job, place, is_set, &variables);
  if (!job.function.empty()) {
    variables.emplace_back("MAYPOLE_FUNCTION", job.function);
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
        std::to_string(std::max(1, job.usable_cores / job.ranks_here)));
  }
  return variables;
}

}  // namespace maypole::launcher
