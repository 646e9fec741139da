// Dashboard: the coordinator's web page, for a browser.
//
// Purpose: shows jobs, nodes and ranks while they run (docs/dashboard.md), and
// starts and stops timelines for operators. The page is compiled into this
// program and loads nothing from other servers; once a second it gets the data
// of page_data.h, as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
//
//   path            who may           what
//   /               a session (1)     the page; so its scripts and style
//   /login?token=   who has a token   begins a session (access.h)
//   /stream         a session (1)     the data, until the browser goes away
//   /timeline?job=  a session with    POST: starts a job's timeline, or with
//                   Right::kControl   &stop=1 stops it. Needs a header that
//                                     pages of other servers cannot send
//                                     (kOwnHeader)
//
// (1) or, with TLS, a certificate with which a caller may use the Admin service
//
// libevent serves HTTP on one thread, which no browser can block:
//
//   a connection                             is dropped
//   that has not shown a right, whatever
//   it sends                                 after kBrowserTimeout
//   of those, the oldest of the network      when there would be more than
//   with the most (strangers.h)              kMaxBrowserStrangers
//   that does not send its next request, or
//   does not read its page                   after kBrowserTimeout
//   that does not read its stream            at kMaxBacklogBytes
//   that would be one of over kMaxWatchers   with an answer that says so
//
// Thread contract: any thread may call MakeToken(). `hub` outlives it.
#ifndef MAYPOLE_COORDINATOR_SERVICE_DASHBOARD_H_
#define MAYPOLE_COORDINATOR_SERVICE_DASHBOARD_H_

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <openssl/ssl.h>

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/program/strangers.h"
#include "common/program/tls.h"
#include "common/system/fd.h"
#include "coordinator/dashboard/access.h"
#include "coordinator/dashboard/assets.h"
#include "coordinator/service/hub.h"

namespace maypole::coordinator {

inline constexpr size_t kMaxWatchers = 16;
inline constexpr size_t kMaxBacklogBytes = 4 << 20;
inline constexpr size_t kMaxBrowserStrangers = 64;
inline constexpr std::chrono::seconds kBrowserTimeout(10);

class Dashboard {
 public:
  // With TLS it serves HTTPS, with the same certificate as the coordinator.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(
      const Address& address, const TlsOptions& tls, Hub* hub);
  ~Dashboard();

  // With the actual port.
  const Address& address() const { return address_; }
  bool tls() const { return context_ != nullptr; }
  // For a link: /login?token=TOKEN. Valid once, for kTokenTime. control: with
  // Right::kControl.
  std::string MakeToken(bool control);

 private:
  template <auto Free>
  struct FreeBy {
    template <typename T>
    void operator()(T* object) const {
      Free(object);
    }
  };
  // A browser that gets the stream.
  struct Watcher {
    evhttp_connection* connection = nullptr;
    evhttp_request* request = nullptr;  // of the connection: ends with it
    uint64_t after = 0;                 // the last event that it has received
  };
  using Watchers = std::list<Watcher>;
  // A connection that has not shown a right. The reference keeps the object
  // alive: libevent does not report that it closes a connection, but removes
  // its callbacks.
  struct Stranger {
    bufferevent* connection = nullptr;
    Time deadline{};
  };

  Dashboard(Address address, Hub* hub);
  absl::Status SetUpTls(const TlsOptions& tls);
  absl::Status Listen();
  // A connection for libevent, which gives it its socket afterwards.
  bufferevent* MakeConnection();
  void CountArrived();
  void DropStrangers();
  void Admit(evhttp_request* request);
  void Handle(evhttp_request* request);
  void LogIn(evhttp_request* request);
  void BeginStream(evhttp_request* request);
  void EndStream(evhttp_connection* connection);
  void RecordTimeline(evhttp_request* request);
  Right RightOf(evhttp_request* request) const;
  // Sends the current data to all watchers.
  void Look();
  // event: empty for the browser's default, "message".
  void Send(absl::string_view event, const std::string& data,
            Watchers::iterator watcher);
  // The current data, with the events after *after; sets *after to the last of
  // them.
  std::string Data(uint64_t* after) const;

  Address address_;
  Hub* const hub_;
  mutable std::mutex mutex_;
  DashboardAccess access_;

  // Used by thread_ once it runs:
  std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>> context_;  // null: no TLS
  Fd stop_;
  std::unique_ptr<event_base, FreeBy<event_base_free>> base_;
  std::unique_ptr<event, FreeBy<event_free>> stopped_;
  std::unique_ptr<event, FreeBy<event_free>> tick_;
  std::unique_ptr<event, FreeBy<event_free>> arrival_;
  std::unique_ptr<evhttp, FreeBy<evhttp_free>> http_;
  Watchers watchers_;
  std::vector<bufferevent*> arrived_;  // not yet in strangers_
  Strangers<Stranger> strangers_{kMaxBrowserStrangers};
  std::thread thread_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_DASHBOARD_H_
