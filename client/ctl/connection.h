// CoordinatorClient: calls to one coordinator. Its errors say what an operator
// can do.
//
// Thread contract: one call at a time.
#ifndef MAYPOLE_CLIENT_CTL_CONNECTION_H_
#define MAYPOLE_CLIENT_CTL_CONNECTION_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/options.h"
#include "common/program/tls.h"
#include "grpcpp/client_context.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::ctl {

class CoordinatorClient {
 public:
  // Reads the secret and the certificates; connects with the first call.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Make(
      const CtlOptions& options);

  // job: the job to report; empty: all jobs. stats: also what the jobs do now.
  absl::StatusOr<proto::StatusReply> Status(const std::string& job,
                                            bool stats = false);
  absl::StatusOr<proto::AbortReply> Abort(const proto::AbortRequest& request);
  absl::StatusOr<proto::DrainReply> Drain(const proto::DrainRequest& request);
  absl::StatusOr<proto::DashboardReply> MakeDashboardLink(bool control);
  absl::StatusOr<proto::RecordTimelineReply> RecordTimeline(
      const proto::RecordTimelineRequest& request);
  // Calls on_event for each event until it returns false, the events end, or
  // the call fails.
  absl::Status Watch(const proto::EventsRequest& request,
                     const std::function<bool(const proto::Event&)>& on_event);

  const std::string& address() const { return address_; }

 private:
  CoordinatorClient(const CtlOptions& options, std::string secret,
                    TlsOptions tls);
  void Prepare(grpc::ClientContext* context) const;
  absl::Status Explain(const grpc::Status& status) const;
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (proto::Admin::Stub::*method)(
                                 grpc::ClientContext*, const Request&, Reply*),
                             const Request& request);

  const std::string address_;
  const int timeout_s_;
  const std::string secret_;
  const TlsOptions tls_;
  std::unique_ptr<proto::Admin::Stub> stub_;
};

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_CONNECTION_H_
