#include "client/launcher/elastic/host_discovery.h"

#include <algorithm>
#include <csignal>
#include <string_view>
#include <thread>
#include <utility>

#include "client/launcher/process/process.h"
#include "common/system/thread.h"

namespace maypole::launcher {
namespace {

constexpr size_t kMaxErrorBytes = 200;  // of its stderr, in a line

// Appends to *out, but no more than `most` bytes in all.
PipeReader::Take AppendTo(std::string* out, size_t most) {
  return [out, most](std::string_view bytes) {
    out->append(bytes.substr(0, most - std::min(most, out->size())));
  };
}

// Whether the shell may take the word for something other than a program.
bool IsShellSyntax(std::string_view word) {
  return word.find_first_of("=$`\"'\\(){}<>|&;!~*?[") != word.npos;
}

}  // namespace

Status FindDiscovery(const std::string& script, std::string* program,
                     std::vector<std::string>* arguments) {
  *arguments = {script};
  const Status status = FindProgram(script, program);
  constexpr char kBlank[] = " \t\n";
  if (status.ok() || script.find_first_of(kBlank) == script.npos) return status;
  const size_t begin =
      std::min(script.find_first_not_of(kBlank), script.size());
  const std::string word =
      script.substr(begin, script.find_first_of(kBlank, begin) - begin);
  if (!IsShellSyntax(word)) {
    if (Status s = FindProgram(word, program); !s.ok()) return s;
  }
  *program = "/bin/sh";
  *arguments = {"sh", "-c", script};
  return Status();
}

void HostDiscovery::OnTime(Time now) {
  if (process_ != nullptr && exit_) {
    process_->CloseOutput();
    process_.reset();
    TakeHosts(now);
  } else if (resolving_ && resolving_->wait_for(std::chrono::seconds(0)) ==
                               std::future_status::ready) {
    here_.merge(resolving_->get());
    resolving_.reset();
    TakeHosts(now);
  }
  if (now < next_) return;
  if (resolving_) {
    next_ = now + kNamesInterval;
    return;
  }
  if (process_ == nullptr) return Start(now);
  killed_ = true;
  process_->Signal(SIGKILL);
  next_ = now + kDiscoveryLimit;
}

void HostDiscovery::Stop() {
  if (process_ != nullptr) process_->Signal(SIGKILL);
}

void HostDiscovery::Start(Time now) {
  exit_.reset();
  killed_ = false;
  output_.clear();
  errors_.clear();
  next_ = now + kDiscoveryLimit;
  std::string program;
  std::vector<std::string> arguments;
  Status status = FindDiscovery(settings_.script, &program, &arguments);
  if (status.ok()) {
    process_ = std::make_unique<ChildProcess>(
        loop_,
        ChildProcess::Settings{.spawn = {.arguments = arguments,
                                         .process_group = ProcessGroup::kNew,
                                         .death_signal = SIGKILL},
                               .out = AppendTo(&output_, kMaxDiscoveryBytes),
                               .err = AppendTo(&errors_, kMaxErrorBytes),
                               .owns_group = true,
                               .on_end = [this](Exit exit) { exit_ = exit; }});
    status = process_->Start(program);
  }
  if (status.ok()) return;
  process_.reset();
  next_ = now + kDiscoveryInterval;
  ReportProblem(status.message());
}

void HostDiscovery::TakeHosts(Time now) {
  next_ = now + kDiscoveryInterval;
  if (killed_) {
    return ReportProblem("took longer than " +
                         std::to_string(kDiscoveryLimit.count()) + " s");
  }
  if (!exit_->clean()) {
    const std::string_view line =
        std::string_view(errors_).substr(0, errors_.find('\n'));
    return ReportProblem(Describe(*exit_) +
                         (line.empty() ? "" : ": " + std::string(line)));
  }
  std::vector<Host> hosts;
  std::vector<std::string> unknown;
  const IsHere known = [&](const std::string& name) {
    const auto it = here_.find(name);
    if (it == here_.end()) unknown.push_back(name);
    return it != here_.end() && it->second;
  };
  Status status = ParseHostLines("its output", output_,
                                 settings_.slots_per_host, known, &hosts);
  if (status.ok() && !unknown.empty()) {
    status = ResolveNames(unknown);
    if (status.ok()) {  // when the names are known, it is called again
      next_ = now + kNamesInterval;
      return;
    }
  }
  if (status.ok()) status = CheckSlots(hosts);
  if (!status.ok()) return ReportProblem(status.message());
  // A script that has failed may print nothing and succeed; without hosts the
  // training would be lost.
  if (hosts.empty()) return ReportProblem("has printed no host");
  reported_ = false;
  for (Host& host : hosts) {  // by whatever name: it is listed at most once
    if (!host.here) continue;
    if (own_name_.empty()) own_name_ = host.name;
    host.name = own_name_;
  }
  settings_.on_hosts(hosts);
}

// The thread cannot be stopped, and may outlive this object.
Status HostDiscovery::ResolveNames(const std::vector<std::string>& names) {
  std::promise<std::map<std::string, bool>> promise;
  resolving_ = promise.get_future();
  std::thread thread;
  const Status status = StartThread(
      [names, is_here = settings_.is_here,
       p = std::make_shared<decltype(promise)>(std::move(promise))] {
        std::map<std::string, bool> here;
        for (const std::string& name : names) here[name] = is_here(name);
        p->set_value(std::move(here));
      },
      &thread);
  if (status.ok()) {
    thread.detach();
  } else {
    resolving_.reset();
  }
  return status;
}

void HostDiscovery::ReportProblem(const std::string& what) {
  if (std::exchange(reported_, true)) return;
  settings_.say("--host-discovery-script " + settings_.script + ": " + what +
                "; the hosts stay as they are");
}

}  // namespace maypole::launcher
