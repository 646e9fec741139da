// EtcdStore: an ElectionStore that is a cluster of etcd, over gRPC.
//
// Purpose: the key <prefix>/leader is created in a transaction if it does not
// exist, attached to a lease. The term is the etcd revision that created the
// key. A call goes to one endpoint; after a failure the next call goes to the
// next endpoint.
//
//   EtcdStore store({.endpoints = {"h1:2379", "h2:2379", "h3:2379"},
//                    .prefix = "/maypole/default",
//                    .value = HolderValue("head1:4001", incarnation)});
//
// Thread contract: as ElectionStore's.
#ifndef MAYPOLE_COORDINATOR_ELECTION_ETCD_STORE_H_
#define MAYPOLE_COORDINATOR_ELECTION_ETCD_STORE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/program/tls.h"
#include "coordinator/election/etcd.grpc.pb.h"
#include "coordinator/election/store.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace maypole::coordinator {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT; at least one
  TlsOptions tls;
  std::string prefix;  // of keys
  std::string value;   // what this coordinator writes to the key
  BootInstant ttl = std::chrono::seconds(5);  // whole seconds
};

class EtcdStore : public ElectionStore {
 public:
  explicit EtcdStore(EtcdOptions options);

  StoreAnswer Call(const StoreCall& call) override;
  void Watch(const std::function<void()>& changed) override;
  void Stop() override;

 private:
  struct Endpoint {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };
  // A call that Stop() cancels.
  class Running;

  StoreAnswer Look(const Endpoint& to, grpc::ClientContext* context);
  StoreAnswer Grant(const Endpoint& to, grpc::ClientContext* context);
  StoreAnswer Claim(const Endpoint& to, LeaseId lease,
                    grpc::ClientContext* context);
  StoreAnswer Renew(const Endpoint& to, LeaseId lease,
                    grpc::ClientContext* context);
  StoreAnswer Revoke(const Endpoint& to, LeaseId lease,
                     grpc::ClientContext* context);
  StoreAnswer Make(const StoreCall& call, const Endpoint& to,
                   grpc::ClientContext* context);
  void WatchAt(const Endpoint& endpoint, const std::function<void()>& changed);
  // False if the store is being stopped.
  bool Pause();

  const EtcdOptions options_;
  const std::string key_;
  std::vector<Endpoint> endpoints_;
  size_t current_ = 0;  // endpoint of calls

  std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;
  std::set<grpc::ClientContext*> running_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_ETCD_STORE_H_
