#include "tests/gpu/probe/lab/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/probe/lab/command.h"

namespace maypole::probe {
namespace {

// The first start of CUDA on a machine may compile, load and power up.
constexpr Duration kOpenTimeout = Seconds(60);

std::string Processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string CudaVersion(int number) {
  return absl::StrCat(number / 1000, ".", number % 1000 / 10);
}

std::string NcclVersion(const gpu::Versions& v) {
  if (v.nccl == 0) return absl::StrCat("none: ", v.nccl_error);
  return absl::StrCat(v.nccl / 10000, ".", v.nccl / 100 % 100, ".",
                      v.nccl % 100);
}

absl::Status Describe(Stage& stage) {
  const gpu::DeviceInfo& d = stage.gpu().device();
  const gpu::Versions& v = stage.versions();
  const std::pair<std::string, std::string> lines[] = {
      {"device", d.name},
      {"device memory", absl::StrCat(d.total_bytes >> 20, " MiB")},
      {"multiprocessors", absl::StrCat(d.multiprocessors)},
      {"compute capability",
       absl::StrCat(d.compute_major, ".", d.compute_minor)},
      {"copy engines", absl::StrCat(d.copy_engines)},
      {"exports memory", d.exports_memory ? "yes" : "no"},
      {"stream flags", d.stream_flags ? "yes" : "no"},
      {"CUDA of the driver", CudaVersion(v.driver)},
      {"CUDA of the plugin", CudaVersion(v.runtime)},
      {"NCCL", NcclVersion(v)},
  };
  std::string text = "machine ";
  for (const auto& [key, value] : lines) {
    absl::StrAppend(&text, key, "=", value, "\n");
  }
  const absl::Status sent = stage.channel().Send(text);
  if (!sent.ok()) return sent;
  stage.channel().Receive(kOpenTimeout).status().IgnoreError();
  return absl::OkStatus();
}

// What nvidia-smi knows besides, where there is one.
void AskNvidiaSmi(Report& report) {
  const auto text =
      RunCommand({{"nvidia-smi",
                   "--query-gpu=driver_version,compute_mode,mig.mode.current,"
                   "persistence_mode,clocks.max.sm,clocks.max.mem,power.limit",
                   "--format=csv,noheader"}},
                 Seconds(20));
  if (text.ok()) {
    report.SetMachine(
        "nvidia-smi (driver, compute mode, MIG, persistence, SM and memory "
        "clock, power)",
        *text);
  }
}

}  // namespace

absl::Status DescribeMachine(Lab& lab) {
  Report& report = lab.report();
  utsname name{};
  uname(&name);
  report.SetMachine("kernel", absl::StrCat(name.sysname, " ", name.release, " ",
                                           name.machine));
  report.SetMachine(
      "processor",
      absl::StrCat(Processor(), ", ", sysconf(_SC_NPROCESSORS_ONLN), " cores"));
  absl::StatusOr<Actor> actor = lab.Start("describe");
  if (!actor.ok()) return actor.status();
  const auto line = actor->channel().Expect("machine", kOpenTimeout);
  if (!line.ok()) return line.status();
  const std::string text = line->text.substr(sizeof("machine"));
  for (const absl::string_view entry :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t equals = entry.find('=');
    report.SetMachine(std::string(entry.substr(0, equals)),
                      std::string(entry.substr(equals + 1)));
  }
  if (!lab.options().fake) AskNvidiaSmi(report);
  return actor->End(kOpenTimeout);
}

void AddMachineRoles(RoleTable* roles) { (*roles)["describe"] = Describe; }

}  // namespace maypole::probe
