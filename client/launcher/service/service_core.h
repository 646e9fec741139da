// ServiceCore: the decisions of the node service.
//
// Purpose: the ranks of one job on one node, started by mpirun, torchrun, srun
// or the like, connect to the service (client/bootstrap/bootstrap_messages.h).
// The core decides which daemons to start, sends each rank its agent's socket
// or an error, and decides when the service ends. Pure: no I/O, no clock;
// NodeService (service_shell.h) performs the actions.
//
// Thread contract: not synchronized.
//
// Invariants: after kStop no other action follows. Each rank that has sent its
// RankMessage gets exactly one answer, as soon as it is known. Each daemon is
// started at most once.
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

inline constexpr char kAgentName[] = "agent";

// Facts about the machine and the environment.
struct ServiceFacts {
  std::string directory;
  std::string running_agent;     // a socket where an agent listens; empty: none
  std::string coordinator;       // MAYPOLE_COORDINATOR
  std::string coordinator_port;  // MAYPOLE_COORDINATOR_PORT
  std::string secret_file;       // MAYPOLE_SECRET_FILE
  std::string token;             // MAYPOLE_TOKEN
  std::string random_secret;
  std::string random_token;
  std::string any_address = "0.0.0.0";  // to listen on all addresses
  std::vector<std::string> addresses;   // of this machine, for other nodes
  int64_t fusion_threshold = -1;        // -1: not set
  // Reads a key that other nodes have too: the user's secret, or the cluster's
  // secret in secret_file.
  std::function<Status(std::string*)> user_secret;
  std::function<Status(std::string*)> cluster_secret;
  // A keyed hash (MAC) of `text`.
  std::function<std::string(const std::string& key, const std::string& text)>
      derive;
};

struct ServiceAction {
  enum Kind {
    kSend,         // send `text` to `connection`
    kClose,        // close `connection`
    kWriteSecret,  // write `text` into <directory>/secret
    kStart,        // start the daemon `name` with `arguments`
    kDial,         // find out which of `arguments` (HOST:PORT) answers
    kStop,         // end the daemons, clean up and exit
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

  // Events; each returns the actions to perform, in order.
  Actions Connected(int connection);
  Actions Said(int connection, const std::string& message);
  Actions Closed(int connection);
  // The daemon with this name is ready.
  Actions Ready(const std::string& name, const Announcement& announcement);
  // This address of the last kDial accepts connections.
  Actions Dialed(const std::string& address);
  // An action failed, or a daemon has ended. what: one line.
  Actions Failed(const std::string& what);
  // No rank has been connected for a while.
  Actions Idle();

  // The start timeout of the first rank.
  int start_timeout_seconds() const {
    return first_ ? first_->start_timeout_seconds : 120;
  }
  // The file with the secret of the job's own coordinator.
  std::string secret_path() const { return facts_.directory + "/secret"; }

 private:
  struct Rank {
    std::optional<RankMessage> place;
    bool answered = false;
  };

  void Place(int connection, const std::string& message);
  Status CheckSameJob(const RankMessage& place) const;
  void Begin();
  Status MakeOwnInfo();
  Status MakeInfoOfCoordinator();
  Status FindToken(bool* known);
  Status DeriveInfo();
  // Derives secret and token; all nodes that know `key` get the same.
  void Derive(const std::string& key, BootstrapInfo* info) const;
  // Adds what only this node knows to the published bootstrap info.
  Status Complete(BootstrapInfo* info) const;
  void StartCoordinator(const std::string& listen);
  void StartWorker(const std::string& coordinator,
                   const std::string& secret_file);
  void Carry();
  void Use(const BootstrapInfo& info);
  void Answer(const std::string& agent);
  void AnswerRank(int connection, Rank* rank);
  void Fail(const Status& status);
  void Leave(int connection, bool politely);
  void Send(int connection, std::string text);
  Actions Take();

  const ServiceFacts facts_;
  std::map<int, Rank> ranks_;
  std::optional<RankMessage> first_;  // of the first rank
  BootstrapInfo info_;                // the job's bootstrap info
  bool carried_ = false;   // the bootstrap info is exchanged by the launcher
  bool own_info_ = false;  // info_ is complete, and this node publishes it
  bool used_ = false;      // the agent, or the search for its coordinator, was
                           // started
  int asked_ = -1;     // connection that was asked to get or publish; -1: none
  std::string agent_;  // the agent's socket; empty: not known yet
  std::optional<Status> failure_;
  bool stopped_ = false;
  Actions actions_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_CORE_H_
