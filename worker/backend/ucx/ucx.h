// Ucx: the functions of UCX, libucp.so.0, that Maypole calls.
//
// Purpose: UCX (https://openucx.org) carries messages over InfiniBand, RoCE,
// shared memory and TCP. It is loaded when a node wants to use it and never
// linked, so one build runs with every UCX from kMinUcxVersion on, and without
// one. The members have the functions' own names.
//
//   absl::StatusOr<const Ucx*> ucx = OpenUcx();
//   (*ucx)->ucp_worker_progress(worker);
//
// What UCX may use is up to its own variables (UCX_TLS, UCX_NET_DEVICES), which
// SetUcxEnvironment() completes.
//
// Thread contract: OpenUcx() and HasRdmaDevice() from any thread, the functions
// as UCX documents them. SetUcxEnvironment() before there are other threads.
//
// Invariants: all pointers are set. The library and the context stay until the
// process ends.
#ifndef MAYPOLE_WORKER_BACKEND_UCX_UCX_H_
#define MAYPOLE_WORKER_BACKEND_UCX_UCX_H_

#include <ucp/api/ucp.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace maypole::worker {

// Older ones may end the process when a peer is lost: by an assertion
// (github.com/openucx/ucx/pull/8175), or in their TCP.
inline constexpr std::pair<unsigned, unsigned> kMinUcxVersion{1, 18};

// Names the file to load; without it, libucp.so.0 as the dynamic linker finds
// it.
inline constexpr char kUcxLibraryVariable[] = "MAYPOLE_UCX_LIBRARY";

struct Ucx {
  decltype(&::ucp_get_version) ucp_get_version;
  decltype(&::ucp_config_read) ucp_config_read;
  decltype(&::ucp_config_modify) ucp_config_modify;
  decltype(&::ucp_config_release) ucp_config_release;
  decltype(&::ucp_init_version) ucp_init_version;
  decltype(&::ucp_worker_create) ucp_worker_create;
  decltype(&::ucp_worker_destroy) ucp_worker_destroy;
  decltype(&::ucp_worker_get_address) ucp_worker_get_address;
  decltype(&::ucp_worker_release_address) ucp_worker_release_address;
  decltype(&::ucp_worker_get_efd) ucp_worker_get_efd;
  decltype(&::ucp_worker_arm) ucp_worker_arm;
  decltype(&::ucp_worker_signal) ucp_worker_signal;
  decltype(&::ucp_worker_progress) ucp_worker_progress;
  decltype(&::ucp_ep_create) ucp_ep_create;
  decltype(&::ucp_ep_close_nbx) ucp_ep_close_nbx;
  decltype(&::ucp_tag_send_nbx) ucp_tag_send_nbx;
  decltype(&::ucp_tag_recv_nbx) ucp_tag_recv_nbx;
  decltype(&::ucp_request_cancel) ucp_request_cancel;
  decltype(&::ucp_request_free) ucp_request_free;
  decltype(&::ucs_status_string) ucs_status_string;

  std::pair<unsigned, unsigned> number;
  std::string version;              // "1.18.1"
  ucp_context_h context = nullptr;  // for tag matching, with wake-ups
};

// Loads the library and makes the context, once per process; a failure is tried
// again by the next call. kUnavailable, with one line, if there is none, it is
// too old, or has nothing to work with.
absl::StatusOr<const Ucx*> OpenUcx();

// If a port of an InfiniBand or RoCE adapter of this machine is active.
bool HasRdmaDevice();

// Sets variables of UCX that the environment leaves open: it handles no signals
// of this process and prints nothing (errors are reported with their node), and
// does not read other processes' memory, which executors do not permit.
void SetUcxEnvironment();

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_UCX_UCX_H_
