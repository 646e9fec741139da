// ExecutorClients: the connections of the executor's clients.
//
// Purpose: reads the clients' messages, sends messages in each client's version
// of the session protocol, and watches processes whose connections are closed.
// Handler decides what the messages mean.
//
// Thread contract: the executor's loop.
//
// Invariant: Handler::OnClientGone() is called once for a client whose
// connection has failed or ended, and not for one that was closed here.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_CLIENTS_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_CLIENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/board/board.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"
#include "worker/core/executor_core_options.h"
#include "worker/executor/executor_system.h"

namespace maypole::worker {

class ExecutorClients {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // A message whose header is valid. An error closes the connection.
    virtual Status OnMessage(ClientId id, const std::vector<char>& data) = 0;
    // Called after each message, before the next is read.
    virtual void AfterMessage() = 0;
    // `how` completes "rank 3 died: ".
    virtual void OnClientGone(ClientId id, const std::string& how) = 0;
    // A process whose connection was closed has ended.
    virtual void OnProcessEnded(ClientId id) = 0;
  };

  // All must outlive this object.
  ExecutorClients(const ExecutorCoreOptions& options,
                  ExecutorObserver* observer, Handler* handler)
      : options_(options), observer_(*observer), handler_(*handler) {}

  // First reads what the other clients have sent: if a rank reconnects, its
  // Goodbye may still be queued in its old socket. Returns false if there are
  // too many clients; then this client gets a Refused.
  bool Admit(ClientId id, const ArrivingClient& client,
             std::unique_ptr<ClientLink> link);
  // The client's socket can be read or written.
  void OnReadable(ClientId id);
  // The process of a client, or of one that was closed, has ended.
  void OnProcessEnded(ClientId id);

  // These do nothing if the client has gone. `message` begins with a header;
  // Send() sets its version.
  void Send(ClientId id, void* message, size_t bytes);
  void SendState(ClientId id, session::StateReply* reply, const Fd* state);
  // From now on the client and this executor speak the version of `welcome`.
  void Welcome(ClientId id, const session::Welcome& welcome, const Board& board,
               const BoardWake& wake);
  void Refuse(const RefuseClient& refusal);
  void Close(ClientId id) { clients_.erase(id); }
  // Watches the client's process after its connection is closed. Returns false
  // if the process cannot be watched.
  bool KeepWatching(ClientId id);
  void StopWatching(ClientId id) { watched_.erase(id); }

  // The descriptor that came with the message that is being handled, or none.
  Fd TakeDescriptor() { return std::move(descriptor_); }
  bool has_descriptor() const { return descriptor_.valid(); }
  bool Has(ClientId id) const { return clients_.contains(id); }
  // The client must be there. RankOf: the rank in its Hello; PidOf: its pid in
  // our PID namespace, or 0.
  int RankOf(ClientId id) const { return clients_.at(id).rank; }
  int PidOf(ClientId id) const { return clients_.at(id).pid; }
  size_t size() const { return clients_.size(); }
  size_t watched() const { return watched_.size(); }

 private:
  struct Client {
    std::unique_ptr<ClientLink> link;
    int rank = 0;
    // Of messages to the client; until Welcome, the oldest that it reads.
    uint32_t version = 0;
    int pid = 0;
  };

  void ReadAll();
  void Read(ClientId id, int max_messages);
  void Gone(ClientId id, const std::string& how);

  const ExecutorCoreOptions& options_;
  ExecutorObserver& observer_;
  Handler& handler_;
  std::map<ClientId, Client> clients_;
  std::map<ClientId, std::unique_ptr<ProcessWatch>> watched_;
  Fd descriptor_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_CLIENTS_H_
