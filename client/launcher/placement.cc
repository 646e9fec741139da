#include "client/launcher/placement.h"

#include <algorithm>

namespace maypole::launcher {

std::vector<Place> PlaceRanks(int ranks, int nodes) {
  std::vector<Place> places;
  for (int node = 0; node < nodes; ++node) {
    int local_size = ranks / nodes + (node < ranks % nodes ? 1 : 0);
    for (int local = 0; local < local_size; ++local) {
      places.push_back({.rank = static_cast<int>(places.size()),
                        .node = node,
                        .local_rank = local,
                        .local_size = local_size});
    }
  }
  return places;
}

std::string NodeName(int node) { return "node" + std::to_string(node); }

Variables RankVariables(const JobEnvironment& job, const Place& place,
                        const IsSet& is_set) {
  Variables variables = {
      {"MAYPOLE_RANK", std::to_string(place.rank)},
      {"MAYPOLE_SIZE", std::to_string(job.ranks)},
      {"MAYPOLE_LOCAL_RANK", std::to_string(place.local_rank)},
      {"MAYPOLE_LOCAL_SIZE", std::to_string(place.local_size)},
      {"MAYPOLE_CROSS_RANK", std::to_string(place.node)},
      {"MAYPOLE_CROSS_SIZE", std::to_string(job.nodes)},
      {"MAYPOLE_JOB", job.job},
      {"MAYPOLE_TOKEN", job.token},
      {"MAYPOLE_START_TIMEOUT", std::to_string(job.start_timeout_s)},
      {"MAYPOLE_NODE", NodeName(place.node)},
  };
  if (!job.agents.empty()) {
    variables.emplace_back("MAYPOLE_AGENT", job.agents.at(place.node));
  }
  // Python keeps output back when it is not a terminal; a rank's must be seen.
  if (!is_set("PYTHONUNBUFFERED")) {
    variables.emplace_back("PYTHONUNBUFFERED", "1");
  }
  // Each rank taking all cores for itself would make all of them slow.
  if (!is_set("OMP_NUM_THREADS")) {
    variables.emplace_back(
        "OMP_NUM_THREADS",
        std::to_string(std::max(1, job.usable_cores / job.ranks)));
  }
  return variables;
}

}  // namespace maypole::launcher
