// JobLauncher: one run of maypolerun, from the start of its daemons to the end
// of its last process.
//
// Purpose: connects the parts of a job. ElasticJob decides what is started
// where (the processes of a job that is not elastic are not replaced),
// Supervision when ranks are stopped; JobNodes and JobOutput carry it out.
// JobLauncher runs in the supervisor process, the child of the guard (guard.h),
// which forwards the signals that maypolerun gets, and removes the private
// directory at the end.
//
//   signals, events of nodes ---> JobLauncher ---> ElasticJob, Supervision
//                                      |  <--- what to do ---'
//                                      '---> JobNodes, JobOutput
//
// Thread contract: one thread; call Run() once.
//
// Invariant: when Run() returns, no process that it started is alive.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_

#include <sys/signalfd.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "client/launcher/command/options.h"
#include "client/launcher/elastic/elastic_job.h"
#include "client/launcher/elastic/host_discovery.h"
#include "client/launcher/job/early_leavers.h"
#include "client/launcher/job/job_nodes.h"
#include "client/launcher/job/job_output.h"
#include "client/launcher/job/rank_table.h"
#include "client/launcher/job/start_progress.h"
#include "client/launcher/job/supervision.h"
#include "client/launcher/node/node_listener.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

class JobLauncher : private NodeListener {
 public:
  // Both must outlive the JobLauncher.
  JobLauncher(const LauncherOptions& options, const Supervised& where);

  // Returns the exit status of maypolerun.
  int Run();

 private:
  void OnRank(const FromNode& message) override;
  void OnDaemonLog(const std::string& daemon, std::string_view bytes) override;
  void OnDaemonLost(const std::string& what, bool returns) override;

  Status Start();
  void StartJob();
  ElasticJob::Launcher Hands();
  Status AddRank(int rank, const Host& host, int node);
  Status BeginRanks();
  void OnJoined(int rank);
  void OnOutput(const RankOutput& output);
  // failed: this also ends the job.
  void EndRank(int rank, Exit exit, bool failed);
  Status WaitFor(const std::function<bool()>& done, Time deadline);
  void OnSignal(const signalfd_siginfo& info);
  void FailJob(const std::string& why);
  void Round(std::optional<Time> deadline);
  void ShowProgress(Time now);
  // Ends the wait for ranks to call init(): one has ended, or all are stopped.
  void StopProgress();
  bool Over() const;
  void End();
  void Report(const Status& start);
  void ShowRest();

  const LauncherOptions& options_;
  const Supervised& where_;
  OutputLoop loop_;
  JobOutput output_;
  JobNodes nodes_;
  RankTable ranks_;
  Supervision supervision_;
  EarlyLeavers leavers_;
  StartProgress progress_;
  bool awaits_ranks_ = false;  // started ranks have not called init()
  std::optional<ElasticJob> job_;
  std::optional<HostDiscovery> discovery_;  // of job_
  bool handles_signals_ = false;
  bool starting_ = true;     // the job is not started yet
  Status not_started_;       // why it will not be
  std::string lost_daemon_;  // how the first lost daemon ended; empty: none
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_
