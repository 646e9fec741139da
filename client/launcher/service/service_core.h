// ServiceCore: what the node service decides.
//
// Purpose: the ranks of one job on one node, started by mpirun, torchrun, srun
// and the like, come to it (client/bootstrap/bootstrap_messages.h). It says
// which daemons are to be started, tells every rank its agent or what is wrong,
// and when to end. Pure: no I/O, no clock; the shell is service.cc.
//
// Thread contract: not synchronized.
//
// Invariants: after Stop nothing else is asked for; a rank that has come gets
// one answer, as soon as there is one; each daemon is started at most once.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_CORE_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/bootstrap/bootstrap_messages.h"
#include "client/launcher/process/announcement.h"
#include "common/status.h"

namespace maypole::launcher {

inline constexpr char kCoordinatorName[] = "coordinator";
inline constexpr char kAgentName[] = "agent";

// What the shell knows of machine and environment.
struct ServiceFacts {
  std::string directory;
  std::string running_agent;     // a socket where an agent listens; empty: none
  std::string coordinator;       // MAYPOLE_COORDINATOR
  std::string coordinator_port;  // MAYPOLE_COORDINATOR_PORT
  std::string secret_file;       // MAYPOLE_SECRET_FILE
  std::string token;             // MAYPOLE_TOKEN
  std::string random_secret;
  std::string random_token;
  std::string any_address = "0.0.0.0";  // to listen on all of them
  std::vector<std::string> addresses;   // of this machine, for other nodes
  int64_t fusion_threshold = -1;        // -1: nothing is said
  // Keys that other nodes have too.
  std::function<Status(std::string*)> user_secret;
  std::function<Status(std::string*)> cluster_secret;  // in secret_file
  // A keyed hash of `text`.
  std::function<std::string(const std::string& key, const std::string& text)>
      derive;
};

struct ServiceAction {
  enum Kind {
    kSend,         // text to connection
    kClose,        // connection
    kWriteSecret,  // text into <directory>/secret
    kStart,        // a daemon: name, arguments
    kDial,         // find out which of `arguments` (HOST:PORT) answers
    kStop,         // end the daemons, clean up, exit
  };
  Kind kind;
  int connection = 0;
  std::string text = {};
  std::string name = {};
  std::vector<std::string> arguments = {};
};

class ServiceCore {
 public:
  using Actions = std::vector<ServiceAction>;

  explicit ServiceCore(ServiceFacts facts) : facts_(std::move(facts)) {}

  Actions Connected(int connection);
  Actions Said(int connection, const std::string& message);
  Actions Closed(int connection);
  // The daemon of that name is ready.
  Actions Ready(const std::string& name, const Announcement& announcement);
  Actions Dialed(const std::string& address);
  // What was asked for cannot be, or a daemon has ended: one line.
  Actions Failed(const std::string& what);
  // For a while nobody has been connected.
  Actions Idle();

  // As the first rank wants it.
  int start_timeout_seconds() const {
    return first_ ? first_->start_timeout_seconds : 120;
  }
  // Where the secret of the job's own coordinator is.
  std::string secret_path() const { return facts_.directory + "/secret"; }

 private:
  struct Rank {
    std::optional<RankMessage> place;
    bool answered = false;
  };

  void Place(int connection, const std::string& message);
  Status CheckSameJob(const RankMessage& place) const;
  void Begin();
  Status OwnTerms();
  Status ForeignTerms();
  Status FindToken(bool* known);
  Status DeriveTerms();
  // Secret and token, as all nodes that know `key` make them.
  void Derive(const std::string& key, BootstrapInfo* terms) const;
  // What has been published, made whole by what this node knows itself.
  Status Complete(BootstrapInfo* terms) const;
  void StartCoordinator(const std::string& listen);
  void StartWorker(const std::string& coordinator,
                   const std::string& secret_file);
  void Carry();
  void Use(const BootstrapInfo& terms);
  void Answer(const std::string& agent);
  void AnswerRank(int connection, Rank* rank);
  void Fail(const Status& status);
  void Leave(int connection, bool politely);
  void Send(int connection, std::string text);
  Actions Take();

  const ServiceFacts facts_;
  std::map<int, Rank> ranks_;
  std::optional<RankMessage> first_;  // the first rank's
  BootstrapInfo terms_;
  bool carried_ = false;    // terms travel through the launcher
  bool own_terms_ = false;  // terms_ is complete, and ours to publish
  bool used_ = false;       // the worker, or its search, is under way
  int asked_ = -1;          // connection that shall get or publish; -1: none
  std::string agent_;       // known: its socket
  std::optional<Status> failure_;
  bool stopped_ = false;
  Actions actions_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_CORE_H_
