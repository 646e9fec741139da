#include "client/bootstrap/launcher_info.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "common/limits.h"
#include "common/parse.h"
#include "common/system/fd.h"
#include "common/wire/signature.h"

namespace maypole {
namespace {

// From here on Slurm's step numbers denote special steps: batch script, extern,
// interactive.
constexpr int64_t kFirstSpecialStep = 4294967280;

Status Bad(std::string what) {
  return Status(Code::kInvalidArgument, std::move(what));
}

const char* Text(const Getter& get, const char* name) {
  const char* text = get(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

std::string TextOr(const Getter& get, const char* name, const char* instead) {
  const char* text = Text(get, name);
  return text != nullptr ? text : instead;
}

bool AnySet(const Getter& get, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (Text(get, name) != nullptr) return true;
  }
  return false;
}

// The names of a launcher's variables.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kTorchrunNames = {"torchrun", "RANK", "WORLD_SIZE",
                                  "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kTorchNames = {"a launcher for torch.distributed", "RANK",
                               "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpiNames = {
    "mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kJsrunNames = {
    "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
    "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"};
constexpr Names kHydraNames = {"mpiexec (MPICH, Intel MPI)", "PMI_RANK",
                               "PMI_SIZE", "MPI_LOCALRANKID",
                               "MPI_LOCALNRANKS"};

Status ReadOne(const Getter& get, const Names& names, const char* name,
               int least, int most, int* out) {
  const char* text = Text(get, name);
  if (text == nullptr) {
    return Bad(std::string(names.launcher) + " started this process, but " +
               name +
               " is not set: start the job again with the launcher, or set all "
               "MAYPOLE_* variables");
  }
  if (!ParseNumber(text, least, most, out)) {
    return Bad(std::string(name) + "='" + text + "' (set by " + names.launcher +
               "): expected a number from " + std::to_string(least) + " to " +
               std::to_string(most));
  }
  return Status();
}

Status CheckFits(const char* what, int value, const char* of, int limit,
                 bool below) {
  if (below ? value < limit : value <= limit) return Status();
  return Bad(std::string(what) + "=" + std::to_string(value) +
             " does not fit " + of + "=" + std::to_string(limit));
}

Status CheckPlaces(const Names& n, const LauncherInfo& f) {
  Status s = CheckFits(n.rank, f.rank, n.size, f.size, true);
  if (s.ok()) s = CheckFits(n.local_size, f.local_size, n.size, f.size, false);
  if (s.ok()) {
    s = CheckFits(n.local_rank, f.local_rank, n.local_size, f.local_size, true);
  }
  return s;
}

Status ReadPlaces(const Getter& get, const Names& n, LauncherInfo* f) {
  Status s = ReadOne(get, n, n.size, 1, kMaxRanks, &f->size);
  if (s.ok()) s = ReadOne(get, n, n.rank, 0, kMaxRanks - 1, &f->rank);
  if (s.ok()) {
    s = ReadOne(get, n, n.local_size, 1, kMaxLocalRanks, &f->local_size);
  }
  if (s.ok()) {
    s = ReadOne(get, n, n.local_rank, 0, kMaxLocalRanks - 1, &f->local_rank);
  }
  return s.ok() ? CheckPlaces(n, *f) : s;
}

// Makes the job's name from the launcher's variables. Jobs of other users, and
// one-node jobs on other machines, get different names even if their variables
// are the same.
std::string JobName(const Getter& get, const ProcessFacts& facts,
                    const LauncherInfo& f, const char* launcher,
                    const std::vector<const char*>& variables) {
  std::string all = std::to_string(facts.uid);
  if (f.local_size == f.size) all += "\n" + facts.host;
  for (const char* name : variables) {
    all += std::string("\n") + name + "=" + TextOr(get, name, "");
  }
  return std::string(launcher) + "." + HashHex(all);
}

Status FindTorchrun(const Getter& get, const ProcessFacts& facts,
                    const Names& names, LauncherInfo* f) {
  if (Status s = ReadPlaces(get, names, f); !s.ok()) return s;
  f->launcher = Launcher::kTorchrun;
  std::vector<const char*> variables = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR",
                                        "MASTER_PORT"};
  // A restarted job needs a new name. Usually MASTER_PORT is new after each
  // restart. It stays the same if the ranks use their agents' store; then the
  // restart count is part of the store's keys, for torch too, and must be part
  // of the name. Otherwise the count must not be in the name: each agent counts
  // only failures of its own ranks, so the counts of a job's nodes may differ.
  if (TextOr(get, "TORCHELASTIC_USE_AGENT_STORE", "") == "True") {
    variables.push_back("TORCHELASTIC_RESTART_COUNT");
  }
  f->job = JobName(get, facts, *f, "torchrun", variables);
  f->node_tag = TextOr(get, "GROUP_RANK", "");
  return Status();
}

Status FindOpenMpi(const Getter& get, const ProcessFacts& facts,
                   LauncherInfo* f) {
  if (Status s = ReadPlaces(get, kOpenMpiNames, f); !s.ok()) return s;
  f->launcher = Launcher::kOpenMpi;
  f->job = JobName(get, facts, *f, "mpirun",
                   {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                    "OMPI_MCA_orte_precondition_transports"});
  return Status();
}

// Each allocation counts its namespaces from 1, so the name also contains the
// job's number.
Status FindJsrun(const Getter& get, const ProcessFacts& facts,
                 LauncherInfo* f) {
  if (Status s = ReadPlaces(get, kJsrunNames, f); !s.ok()) return s;
  f->launcher = Launcher::kJsrun;
  f->job = JobName(get, facts, *f, "jsrun",
                   {"LSB_JOBID", "LSB_JOBINDEX", "PMIX_NAMESPACE"});
  return Status();
}

Status FindHydra(const Getter& get, const ProcessFacts& facts,
                 LauncherInfo* f) {
  if (Status s = ReadPlaces(get, kHydraNames, f); !s.ok()) return s;
  f->launcher = Launcher::kHydra;
  f->job = JobName(get, facts, *f, "mpiexec", {"PMI_PORT", "PMI_KVS"});
  if (f->local_size == f->size) {
    // Nothing else distinguishes two such jobs on one node.
    if (!facts.hydra_proxy.empty()) f->job += "." + facts.hydra_proxy;
  } else if (!AnySet(get, {"PMI_PORT", "PMI_KVS", "MAYPOLE_JOB"})) {
    return Bad(
        "mpiexec has started ranks on several nodes, but gives this job no "
        "unique name: set MAYPOLE_JOB to a unique name on all ranks (mpiexec "
        "-genv MAYPOLE_JOB NAME)");
  }
  return Status();
}

// Slurm's variables are also set where no ranks run: in batch scripts, salloc's
// shells, interactive steps.
bool InStepWithTasks(const Getter& get, const ProcessFacts& facts) {
  const char* step = Text(get, "SLURM_STEP_ID");
  const char* tasks = Text(get, "SLURM_STEP_NUM_TASKS");
  if (tasks == nullptr) tasks = Text(get, "SLURM_NTASKS");
  int64_t number = 0, count = 0;
  if (step == nullptr || Text(get, "SLURM_PROCID") == nullptr ||
      tasks == nullptr || !ParseNumber(step, &number) ||
      number >= kFirstSpecialStep) {
    return false;
  }
  // A step started from the shell of srun --pty inherits the variable, but has
  // no terminal.
  if (Text(get, "SLURM_PTY_PORT") != nullptr && facts.terminal) return false;
  return !ParseNumber(tasks, &count) || count > 1;
}

Status FindSlurmNode(const Getter& get, Names* names, LauncherInfo* f) {
  int node = 0;
  Status s = ReadOne(get, *names, "SLURM_NODEID", 0, kMaxRanks - 1, &node);
  if (!s.ok()) return s;
  names->local_size = "SLURM_STEP_TASKS_PER_NODE";
  const char* text = Text(get, names->local_size);
  std::vector<int> counts;
  if (text == nullptr) {
    return ReadOne(get, *names, names->local_size, 1, kMaxLocalRanks, &node);
  }
  if (s = ExpandCounts(text, &counts); !s.ok()) {
    return Bad(std::string(names->local_size) + "=" + s.message());
  }
  if (s = CheckFits("SLURM_NODEID", node, names->local_size,
                    static_cast<int>(counts.size()), true);
      !s.ok()) {
    return Bad("SLURM_NODEID=" + std::to_string(node) + " does not fit " +
               names->local_size + "=" + text);
  }
  f->local_size = counts[static_cast<size_t>(node)];
  if (f->local_size < 1 || f->local_size > kMaxLocalRanks) {
    return Bad(std::string(names->local_size) + "=" + text +
               ": this node has " + std::to_string(f->local_size) +
               " tasks, but the number of ranks on a node " + "must be 1 to " +
               std::to_string(kMaxLocalRanks));
  }
  f->node_tag = std::to_string(node);
  f->node_name = TextOr(get, "SLURMD_NODENAME", "");
  f->at_head = node == 0;
  std::vector<std::string> hosts;
  s = ExpandHosts(TextOr(get, "SLURM_STEP_NODELIST", ""), &hosts);
  if (!s.ok()) return Bad("SLURM_STEP_NODELIST=" + s.message());
  f->head = hosts[0];
  return Status();
}

Status FindSlurm(const Getter& get, LauncherInfo* f) {
  Names names = {"srun", "SLURM_PROCID",
                 Text(get, "SLURM_STEP_NUM_TASKS") != nullptr
                     ? "SLURM_STEP_NUM_TASKS"
                     : "SLURM_NTASKS",
                 "SLURM_LOCALID", nullptr};
  const char* job = Text(get, "SLURM_JOB_ID");
  if (job == nullptr) {
    return Bad(
        "srun started this process, but SLURM_JOB_ID is not set: start "
        "the job again with srun, or set all MAYPOLE_* variables");
  }
  Status s = ReadOne(get, names, names.size, 1, kMaxRanks, &f->size);
  if (s.ok()) s = ReadOne(get, names, names.rank, 0, kMaxRanks - 1, &f->rank);
  if (s.ok()) {
    s = ReadOne(get, names, names.local_rank, 0, kMaxLocalRanks - 1,
                &f->local_rank);
  }
  if (s.ok()) s = FindSlurmNode(get, &names, f);
  if (s.ok()) s = CheckPlaces(names, *f);
  if (!s.ok()) return s;
  f->launcher = Launcher::kSlurm;
  f->job = std::string("slurm.") + job + "." + Text(get, "SLURM_STEP_ID") +
           "." + TextOr(get, "SLURM_RESTART_COUNT", "0");
  if (f->job.size() > kMaxJobBytes) f->job = "slurm." + HashHex(f->job);
  return Status();
}

// True if the variables are set that users of torch.distributed set by hand, or
// a Kubernetes operator for them. If Maypole ignored them, each rank would
// silently become a job of one rank.
bool SetAsForTorch(const Getter& get) {
  const char* size = Text(get, "WORLD_SIZE");
  int64_t count = 0;
  return size != nullptr && Text(get, "RANK") != nullptr &&
         Text(get, "MASTER_ADDR") != nullptr &&
         (!ParseNumber(size, &count) || count > 1);
}

// Fails if variables of an unknown launcher say that there are several ranks.
Status RefuseUnknownLaunchers(const Getter& get) {
  // In a Slurm step of one task, PMI_SIZE may be the size of the allocation.
  if (AnySet(get, {"SLURM_STEP_ID"})) return Status();
  for (const char* name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const char* size = Text(get, name);
    int64_t count = 0;
    if (size == nullptr || (ParseNumber(size, &count) && count <= 1)) continue;
    return Bad(std::string(name) + "=" + size +
               " says that this process is one of several ranks, but Maypole "
               "does not know this launcher: set MAYPOLE_RANK, MAYPOLE_SIZE, "
               "MAYPOLE_LOCAL_RANK, MAYPOLE_LOCAL_SIZE and MAYPOLE_JOB from "
               "its variables (or MAYPOLE_SIZE=1 for a job of one rank)");
  }
  return Status();
}

// The fields after the program's name in /proc/PID/stat.
std::vector<std::string> StatOf(const std::string& pid, std::string* name) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  // If the process ends meanwhile, the read fails; an iterator would throw.
  std::getline(file, text, '\0');
  const size_t begin = text.find('('), end = text.rfind(')');
  std::vector<std::string> fields;
  if (begin == text.npos || end == text.npos) return fields;
  *name = text.substr(begin + 1, end - begin - 1);
  std::istringstream rest(text.substr(end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

std::string FindHydraProxy() {
  constexpr size_t kParent = 1, kStart = 19;
  std::string pid = "self", name;
  // Bounded, because processes may start and end meanwhile.
  for (int i = 0; i < 64; ++i) {
    const std::vector<std::string> stat = StatOf(pid, &name);
    if (stat.size() <= kStart) break;
    if (name.starts_with("hydra_pmi_prox")) return pid + "." + stat[kStart];
    pid = stat[kParent];
    if (pid == "0") break;
  }
  return "";
}

}  // namespace

ProcessFacts ThisProcessFacts() {
  char host[kMaxHostBytes + 1] = {};
  gethostname(host, sizeof(host) - 1);
  const Fd terminal(open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC));
  return {.uid = geteuid(),
          .host = host,
          .terminal = terminal.valid(),
          .hydra_proxy = FindHydraProxy()};
}

Status DetectLauncher(const Getter& get, const ProcessFacts& facts,
                      LauncherInfo* out) {
  LauncherInfo f;
  Status s;
  if (AnySet(get, {"TORCHELASTIC_RUN_ID"})) {
    s = FindTorchrun(get, facts, kTorchrunNames, &f);
  } else if (AnySet(get, {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"})) {
    // Checked before mpirun: for Spectrum MPI jsrun also sets
    // OMPI_COMM_WORLD_*.
    s = FindJsrun(get, facts, &f);
  } else if (AnySet(get, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"})) {
    s = FindOpenMpi(get, facts, &f);
  } else if (AnySet(get, {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"})) {
    // PMI_RANK alone does not prove it: srun --mpi=pmi2 sets it too.
    s = FindHydra(get, facts, &f);
  } else if (InStepWithTasks(get, facts)) {
    s = FindSlurm(get, &f);
  } else if (SetAsForTorch(get)) {
    s = FindTorchrun(get, facts, kTorchNames, &f);
  } else {
    s = RefuseUnknownLaunchers(get);
  }
  if (s.ok()) *out = std::move(f);
  return s;
}

std::string HashHex(std::string_view text) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(HashBytes(text)));
  return digits;
}

}  // namespace maypole
