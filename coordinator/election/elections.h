// Elections: this coordinator takes part in the election of the leader while
// the object lives.
//
// Purpose: the shell around ElectionCore: it makes the core's calls to the
// store, and turns its other actions into log lines and changes of a
// Leadership.
//
//   Leadership leadership;
//   Elections elections({.address = "head1:4001", .ttl = 5s,
//                        .on_lost = [](const std::string& why) { ...end... }},
//                       std::move(store), &leadership);
//
// A coordinator whose leadership is lost must end its process: `on_lost` is
// called once, after Leads() has become false.
//
// Thread contract: one thread makes the calls and runs the hooks, another one
// watches the key. The destructor ends the leadership, waits for both threads,
// and then revokes the lease, so that others need not wait until it expires.
#ifndef MAYPOLE_COORDINATOR_ELECTION_ELECTIONS_H_
#define MAYPOLE_COORDINATOR_ELECTION_ELECTIONS_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "coordinator/election/election_core.h"
#include "coordinator/election/leadership.h"
#include "coordinator/election/store.h"

namespace maypole::coordinator {

struct ElectionsOptions {
  std::string address;  // of this coordinator, HOST:PORT
  BootInstant ttl = std::chrono::seconds(5);
  // Called when this coordinator becomes the leader or its lease is renewed: it
  // leads until `until`, or longer if this is called again.
  std::function<void(BootInstant until)> on_lead_until;
  std::function<void(const std::string& reason)> on_lost;
};

class Elections {
 public:
  // `leadership` must outlive the object.
  Elections(ElectionsOptions options, std::unique_ptr<ElectionStore> store,
            Leadership* leadership);
  ~Elections();
  Elections(const Elections&) = delete;
  Elections& operator=(const Elections&) = delete;

 private:
  void Run();
  // Waits until the core's deadline or a change. False if the object is being
  // destroyed.
  bool Wait(bool* changed);
  void Do(ElectionActions* actions);
  void Log(const Follow& follow) const;

  const ElectionsOptions options_;
  const std::unique_ptr<ElectionStore> store_;
  Leadership* const leadership_;
  ElectionCore core_;  // used by runner_, then by the destructor

  std::mutex mutex_;
  std::condition_variable woken_;
  bool changed_ = false;
  bool ending_ = false;
  std::thread runner_;
  std::thread watcher_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_ELECTIONS_H_
