#include "coordinator/service/dashboard.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/keyvalq_struct.h>
#include <openssl/x509.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/program/certificate.h"
#include "common/program/listener.h"
#include "coordinator/dashboard/page_data.h"

namespace maypole::coordinator {
namespace {

constexpr char kCookie[] = "maypole_dashboard";
// A browser sends it to another server only if that server agrees; ours never
// does. (https://fetch.spec.whatwg.org/#cors-preflight-fetch)
constexpr char kOwnHeader[] = "X-Maypole";
constexpr timeval kLookEvery = {1, 0};
// Earlier events that a browser gets when it connects.
constexpr size_t kFirstEvents = 200;
constexpr ev_ssize_t kMaxRequestBytes = 8192;

constexpr char kWhoAreYou[] =
    "<!DOCTYPE html><title>Maypole</title><p>Run <code>maypolectl dashboard"
    "</code> and open the link that it prints. A link is good for one browser, "
    "and for five minutes.";

Time Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// 128 bits.
std::string RandomKey() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(),
                         random());
}

std::string CookieOf(evhttp_request* request) {
  const char* all =
      evhttp_find_header(evhttp_request_get_input_headers(request), "Cookie");
  for (absl::string_view part :
       absl::StrSplit(all == nullptr ? "" : all, "; ")) {
    const std::pair<absl::string_view, absl::string_view> cookie =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (cookie.first == kCookie) return std::string(cookie.second);
  }
  return "";
}

bool HasAdminCertificate(evhttp_request* request) {
  bufferevent* const connection =
      evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
  SSL* const ssl = bufferevent_openssl_get_ssl(connection);
  const Certificate certificate(
      ssl == nullptr ? nullptr : SSL_get1_peer_certificate(ssl));
  if (certificate == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) {
    return false;
  }
  char name[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()),
                            NID_commonName, name, sizeof(name));
  return absl::string_view(name) == kAdminName;
}

void AddHeader(evhttp_request* request, const char* name,
               const std::string& value) {
  evhttp_add_header(evhttp_request_get_output_headers(request), name,
                    value.c_str());
}

void Protect(evhttp_request* request) {
  AddHeader(request, "Content-Security-Policy",
            "default-src 'self'; frame-ancestors 'none'");
  AddHeader(request, "Referrer-Policy", "no-referrer");
  AddHeader(request, "X-Content-Type-Options", "nosniff");
  AddHeader(request, "Cache-Control", "no-store");
}

void Reply(evhttp_request* request, int code, const char* type,
           absl::string_view body) {
  AddHeader(request, "Content-Type", type);
  evbuffer_add(evhttp_request_get_output_buffer(request), body.data(),
               body.size());
  evhttp_send_reply(request, code, nullptr, nullptr);
}

// The URL's fields.
class Query {
 public:
  explicit Query(evhttp_request* request) {
    const char* const query =
        evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    evhttp_parse_query_str(query == nullptr ? "" : query, &fields_);
  }
  ~Query() { evhttp_clear_headers(&fields_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Empty if it is not there.
  std::string Get(const char* name) const {
    const char* const value = evhttp_find_header(&fields_, name);
    return value == nullptr ? "" : value;
  }

 private:
  evkeyvalq fields_{};
};

std::string PeerOf(evhttp_request* request) {
  char* address = nullptr;
  ev_uint16_t port = 0;
  evhttp_connection_get_peer(evhttp_request_get_connection(request), &address,
                             &port);
  return address == nullptr ? "?" : address;
}

void AskWho(evhttp_request* request) {
  Reply(request, 401, "text/html; charset=utf-8", kWhoAreYou);
}

}  // namespace

Dashboard::Dashboard(Address address, Hub* hub)
    : address_(std::move(address)),
      hub_(hub),
      access_(RandomKey),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      base_(event_base_new()) {}

absl::StatusOr<std::unique_ptr<Dashboard>> Dashboard::Start(
    const Address& address, const TlsOptions& tls, Hub* hub) {
  std::unique_ptr<Dashboard> dashboard(new Dashboard(address, hub));
  absl::Status status;
  if (tls.enabled()) status = dashboard->SetUpTls(tls);
  if (status.ok()) status = dashboard->Listen();
  if (!status.ok()) return status;
  return dashboard;
}

// A browser need not show a certificate; if it does, our CA must have issued
// it. ReadTlsFiles() has checked the texts.
absl::Status Dashboard::SetUpTls(const TlsOptions& tls) {
  context_.reset(SSL_CTX_new(TLS_server_method()));
  const std::vector<Certificate> own = ReadCertificates(tls.cert);
  const PrivateKey key = ReadPrivateKey(tls.key);
  bool ok =
      context_ != nullptr && !own.empty() && key != nullptr &&
      SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION) == 1 &&
      SSL_CTX_use_certificate(context_.get(), own.front().get()) == 1 &&
      SSL_CTX_use_PrivateKey(context_.get(), key.get()) == 1;
  for (size_t i = 1; ok && i < own.size(); ++i) {
    ok = SSL_CTX_add1_chain_cert(context_.get(), own[i].get()) == 1;
  }
  for (const Certificate& ca : ReadCertificates(tls.ca)) {
    ok = ok && X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()),
                                   ca.get()) == 1;
    ok = ok && SSL_CTX_add_client_CA(context_.get(), ca.get()) == 1;
  }
  if (!ok) {
    return absl::InternalError(
        "the dashboard cannot use the certificates of --tls_cert and --tls_ca "
        "with the key of --tls_key");
  }
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  // Without a context OpenSSL refuses each browser that resumes a session, as
  // all do, because we ask for certificates. The sessions are in the browsers'
  // tickets, not in a cache of ours that strangers could fill.
  constexpr unsigned char kSessions[] = "maypole-dashboard";
  SSL_CTX_set_session_id_context(context_.get(), kSessions,
                                 sizeof(kSessions) - 1);
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
  return absl::OkStatus();
}

absl::Status Dashboard::Listen() {
  if (base_ == nullptr || !stop_.valid()) {
    return absl::ResourceExhaustedError(
        "the dashboard cannot get an event loop: raise the limit of open files "
        "(ulimit -n)");
  }
  http_.reset(evhttp_new(base_.get()));
  evhttp_set_timeout(http_.get(), static_cast<int>(kBrowserTimeout.count()));
  evhttp_set_max_headers_size(http_.get(), kMaxRequestBytes);
  evhttp_set_max_body_size(http_.get(), kMaxRequestBytes);
  evhttp_set_allowed_methods(http_.get(), EVHTTP_REQ_GET | EVHTTP_REQ_POST);
  evhttp_set_gencb(
      http_.get(),
      [](evhttp_request* request, void* self) {
        static_cast<Dashboard*>(self)->Handle(request);
      },
      this);
  evhttp_set_bevcb(
      http_.get(),
      [](event_base*, void* self) {
        return static_cast<Dashboard*>(self)->MakeConnection();
      },
      this);
  absl::StatusOr<TcpListener> listener = ListenTcp(address_, {});
  if (!listener.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve the dashboard: ",
                     std::string(listener.status().message()),
                     "; choose another --dashboard, or end the program that "
                     "holds the port"));
  }
  address_.port = listener->port;
  for (Fd& fd : listener->fds) {
    evhttp_accept_socket(http_.get(), fd.Release());
  }
  stopped_.reset(event_new(
      base_.get(), stop_.get(), EV_READ,
      [](evutil_socket_t, short, void* base) {
        event_base_loopbreak(static_cast<event_base*>(base));
      },
      base_.get()));
  event_add(stopped_.get(), nullptr);
  tick_.reset(event_new(
      base_.get(), -1, EV_PERSIST,
      [](evutil_socket_t, short, void* self) {
        static_cast<Dashboard*>(self)->DropStrangers();
        static_cast<Dashboard*>(self)->Look();
      },
      this));
  event_add(tick_.get(), &kLookEvery);
  arrival_.reset(event_new(
      base_.get(), -1, 0,
      [](evutil_socket_t, short, void* self) {
        static_cast<Dashboard*>(self)->CountArrived();
      },
      this));
  thread_ = std::thread([this] { event_base_dispatch(base_.get()); });
  return absl::OkStatus();
}

Dashboard::~Dashboard() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
  // evhttp_free() closes their connections, but must not call us.
  for (const Watcher& w : watchers_) {
    evhttp_connection_set_closecb(w.connection, nullptr, nullptr);
  }
  for (bufferevent* const b : arrived_) bufferevent_decref(b);
  for (const auto& s : strangers_) bufferevent_decref(s.value.connection);
}

bufferevent* Dashboard::MakeConnection() {
  bufferevent* const connection =
      context_ == nullptr
          ? bufferevent_socket_new(base_.get(), -1, BEV_OPT_CLOSE_ON_FREE)
          : bufferevent_openssl_socket_new(
                base_.get(), -1, SSL_new(context_.get()),
                BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
  if (connection == nullptr) return nullptr;
  bufferevent_incref(connection);
  arrived_.push_back(connection);
  event_active(arrival_.get(), 0, 0);
  return connection;
}

void Dashboard::CountArrived() {
  for (bufferevent* const connection : std::exchange(arrived_, {})) {
    const auto it = strangers_.Add(NetworkOf(bufferevent_getfd(connection)));
    it->value = {connection, Now() + kBrowserTimeout};
    if (strangers_.size() > kMaxBrowserStrangers) DropStrangers();
    if (const auto surplus = strangers_.Surplus()) {
      (*surplus)->value.deadline = Now();
      DropStrangers();
    }
  }
}

// Also forgets those that libevent has closed.
void Dashboard::DropStrangers() {
  const Time now = Now();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    bufferevent* const connection = it->value.connection;
    bufferevent_event_cb open = nullptr;
    bufferevent_getcb(connection, nullptr, nullptr, &open, nullptr);
    if (open != nullptr && now < it->value.deadline) {
      ++it;
      continue;
    }
    // libevent sees the end, and frees its connection.
    if (open != nullptr) shutdown(bufferevent_getfd(connection), SHUT_RDWR);
    bufferevent_decref(connection);
    it = strangers_.Erase(it);
  }
}

void Dashboard::Admit(evhttp_request* request) {
  CountArrived();
  bufferevent* const connection =
      evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
  for (auto it = strangers_.begin(); it != strangers_.end(); ++it) {
    if (it->value.connection != connection) continue;
    bufferevent_decref(connection);
    strangers_.Erase(it);
    return;
  }
}

std::string Dashboard::MakeToken(bool control) {
  std::lock_guard lock(mutex_);
  return access_.MakeToken(Now(), control ? Right::kControl : Right::kLook);
}

void Dashboard::Handle(evhttp_request* request) {
  Protect(request);
  const char* const path =
      evhttp_uri_get_path(evhttp_request_get_evhttp_uri(request));
  const absl::string_view where = path == nullptr || *path == 0 ? "/" : path;
  const bool post = evhttp_request_get_command(request) == EVHTTP_REQ_POST;
  if (post != (where == "/timeline")) {
    return Reply(request, 405, "text/plain",
                 "this method is not for this path\n");
  }
  if (where == "/login") return LogIn(request);
  if (RightOf(request) < Right::kLook) return AskWho(request);
  Admit(request);
  if (where == "/timeline") return RecordTimeline(request);
  if (where == "/stream") return BeginStream(request);
  for (const Asset& asset : Assets()) {
    if (asset.path != where) continue;
    return Reply(request, 200, std::string(asset.type).c_str(), asset.bytes);
  }
  Reply(request, 404, "text/plain", "there is no such page\n");
}

Right Dashboard::RightOf(evhttp_request* request) const {
  if (context_ != nullptr && HasAdminCertificate(request)) {
    return Right::kControl;
  }
  std::lock_guard lock(mutex_);
  return access_.RightOf(Now(), CookieOf(request));
}

void Dashboard::RecordTimeline(evhttp_request* request) {
  const bool own = evhttp_find_header(evhttp_request_get_input_headers(request),
                                      kOwnHeader) != nullptr;
  if (!own || RightOf(request) < Right::kControl) {
    return Reply(request, 403, "text/plain",
                 "this browser may only look; run maypolectl dashboard "
                 "--control and open the link that it prints\n");
  }
  const Query query(request);
  proto::RecordTimelineRequest order;
  order.set_job(query.Get("job"));
  order.set_stop(query.Get("stop") == "1");
  order.set_who(absl::StrCat("the dashboard, from ", PeerOf(request)));
  const auto reply = hub_->Order(&CoordinatorCore::RecordTimeline, order);
  if (!reply.ok()) {
    return Reply(request, 409, "text/plain",
                 std::string(reply.status().message()));
  }
  Reply(request, 200, "text/plain", reply->timeline().path());
}

void Dashboard::LogIn(evhttp_request* request) {
  std::optional<std::string> key;
  {
    std::lock_guard lock(mutex_);
    key = access_.Redeem(Now(), Query(request).Get("token"));
  }
  // Else the link may have been opened twice, by a browser that has a session.
  if (!key && RightOf(request) < Right::kLook) return AskWho(request);
  if (key) {
    AddHeader(
        request, "Set-Cookie",
        absl::StrCat(kCookie, "=", *key, "; Path=/; HttpOnly; SameSite=Strict",
                     context_ != nullptr ? "; Secure" : "",
                     "; Max-Age=", std::chrono::seconds(kSessionTime).count()));
  }
  AddHeader(request, "Location", "/");
  Reply(request, 303, "text/plain", "");
}

void Dashboard::BeginStream(evhttp_request* request) {
  if (watchers_.size() >= kMaxWatchers) {
    return Reply(request, 503, "text/plain",
                 absl::StrCat(kMaxWatchers,
                              " browsers look already, which is the limit; "
                              "close one\n"));
  }
  AddHeader(request, "Content-Type", "text/event-stream");
  evhttp_send_reply_start(request, 200, nullptr);
  evhttp_connection* const connection = evhttp_request_get_connection(request);
  const uint64_t newest = hub_->events()->last();
  watchers_.push_back(
      {connection, request, newest - std::min<uint64_t>(newest, kFirstEvents)});
  evhttp_connection_set_closecb(
      connection,
      [](evhttp_connection* connection, void* self) {
        static_cast<Dashboard*>(self)->EndStream(connection);
      },
      this);
  const auto watcher = std::prev(watchers_.end());
  if (RightOf(request) == Right::kControl) Send("control", "", watcher);
  Send("", Data(&watcher->after), watcher);
}

// The browser has gone. libevent has detached the request from the connection
// and leaves it to us; ending its reply frees it.
void Dashboard::EndStream(evhttp_connection* connection) {
  const auto watcher =
      std::ranges::find(watchers_, connection, &Watcher::connection);
  if (watcher == watchers_.end()) return;
  evhttp_send_reply_end(watcher->request);
  watchers_.erase(watcher);
}

// Normally all have received the same events, so their data are made once.
void Dashboard::Look() {
  std::map<uint64_t, std::pair<std::string, uint64_t>> made;  // by `after`
  for (auto w = watchers_.begin(); w != watchers_.end();) {
    const auto watcher = w++;  // Send() may remove it
    const auto [it, is_new] = made.try_emplace(watcher->after);
    auto& [data, after] = it->second;
    if (is_new) data = Data(&(after = watcher->after));
    watcher->after = after;
    Send("", data, watcher);
  }
}

void Dashboard::Send(absl::string_view event, const std::string& data,
                     Watchers::iterator watcher) {
  evhttp_connection* const connection = watcher->connection;
  evbuffer* const waiting =
      bufferevent_get_output(evhttp_connection_get_bufferevent(connection));
  if (evbuffer_get_length(waiting) > kMaxBacklogBytes) {
    evhttp_connection_set_closecb(connection, nullptr, nullptr);
    watchers_.erase(watcher);
    return evhttp_connection_free(connection);  // with its request
  }
  evbuffer* const chunk = evbuffer_new();
  const std::string text =
      absl::StrCat(event.empty() ? "" : "event: ", event,
                   event.empty() ? "" : "\n", "data: ", data, "\n\n");
  evbuffer_add(chunk, text.data(), text.size());
  evhttp_send_reply_chunk(watcher->request, chunk);
  evbuffer_free(chunk);
}

std::string Dashboard::Data(uint64_t* after) const {
  if (const absl::Status leads = hub_->CheckLeads(); !leads.ok()) {
    return ErrorData(leads.message());
  }
  proto::StatusRequest request;
  request.set_stats(true);
  const absl::StatusOr<proto::StatusReply> status = hub_->Status(request);
  if (!status.ok()) return ErrorData(status.status().message());
  const EventRing::Page page = hub_->events()->Read("", *after);
  *after = page.after;
  return PageData(*status, page.events);
}

}  // namespace maypole::coordinator
