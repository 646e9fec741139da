#include "worker/backend/ucx/ucx_fabric.h"

#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

// After Close(), how long UCX may take to let go of the memory of transfers.
constexpr std::chrono::seconds kClosePatience(5);

// How soon Start() notices that it is stopped.
constexpr std::chrono::milliseconds kPoll(20);

constexpr uint64_t kGreetingSlot = 0;  // chunks have greater ones

constexpr char kClosed[] = "closed";
constexpr char kCancelledHalfway[] = "a message was cancelled half-way";

// Slots are less than 2^32.
ucp_tag_t TagOf(uint32_t sender, uint64_t slot) {
  return ucp_tag_t{sender} << 32 | slot;
}

}  // namespace

// A send or receive that UCX has not ended.
struct UcxFabric::Request {
  UcxLink* link = nullptr;
  TransferTag tag;
  uint64_t bytes = 0;
  bool is_send = false;
  void* handle = nullptr;  // UCX's
  std::list<Request>::iterator self = {};
};

class UcxFabric::UcxLink : public PeerLink {
 public:
  UcxLink(UcxFabric* fabric, uint32_t node, std::string address)
      : fabric(fabric), node(node), address(std::move(address)) {}

  void Send(uint64_t slot, const std::byte* data, uint64_t bytes,
            TransferTag tag) override {
    Post(tag, bytes, true, [&](ucp_request_param_t* param) {
      param->cb.send = &OnSent;
      return fabric->ucx_->ucp_tag_send_nbx(
          endpoint, data, bytes, TagOf(fabric->options_.self, slot), param);
    });
  }
  void Receive(uint64_t slot, std::byte* data, uint64_t bytes,
               TransferTag tag) override {
    Post(tag, bytes, false, [&](ucp_request_param_t* param) {
      param->cb.recv = &OnReceived;
      // Only the callback always gets the size of what has arrived.
      param->op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
      return fabric->ucx_->ucp_tag_recv_nbx(fabric->worker_, data, bytes,
                                            TagOf(node, slot), ~ucp_tag_t{0},
                                            param);
    });
  }
  void Cancel(const TransferListener* listener) override;

  UcxFabric* const fabric;
  const uint32_t node;
  const std::string address;
  // These are guarded by the fabric's mutex.
  ucp_ep_h endpoint = nullptr;
  std::list<Request> open;
  std::string failure;  // empty while it works

 private:
  template <typename Call>
  void Post(TransferTag tag, uint64_t bytes, bool is_send, Call call);
};

template <typename Call>
void UcxFabric::UcxLink::Post(TransferTag tag, uint64_t bytes, bool is_send,
                              Call call) {
  std::string why;
  {
    const Lock lock = fabric->LockForCall();
    if (failure.empty()) {
      const auto request = open.insert(
          open.end(),
          {.link = this, .tag = tag, .bytes = bytes, .is_send = is_send});
      request->self = request;
      ucp_request_param_t param = {};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                           UCP_OP_ATTR_FIELD_USER_DATA |
                           UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      param.user_data = &*request;
      param.memory_type = UCS_MEMORY_TYPE_HOST;
      fabric->posting_ = &*request;
      const ucs_status_ptr_t handle = call(&param);
      const bool called_back =
          std::exchange(fabric->posting_, nullptr) == nullptr;
      if (UCS_PTR_IS_PTR(handle) && !called_back) {
        request->handle = handle;
        fabric->WakeForProgress();
        return;
      }
      if (called_back) {
        why = std::exchange(fabric->posted_failure_, "");
      } else if (UCS_PTR_IS_ERR(handle)) {
        why = fabric->Text(UCS_PTR_STATUS(handle));
      }
      if (!called_back) open.erase(request);
      if (!why.empty()) fabric->Fail(this, why);
    } else {
      why = failure;
    }
    // The thread says it when it is due.
    if (!why.empty() && fabric->failures_matter_) {
      fabric->AddFailure({tag, why});
      fabric->WakeForProgress();
      return;
    }
  }
  tag.listener->OnEnded(tag.tag, why);
}

void UcxFabric::UcxLink::Cancel(const TransferListener* listener) {
  const Lock lock = fabric->LockForCall();
  fabric->failures_matter_ = false;
  fabric->CancelReceives(this, listener);
  const auto is_its = [listener](const Request& r) {
    return r.tag.listener == listener;
  };
  if (std::any_of(open.begin(), open.end(), is_its)) {
    fabric->Fail(this, kCancelledHalfway);
  }
  fabric->WakeForProgress();
}

// --- Opening -----------------------------------------------------------------

UcxFabric::UcxFabric(UcxFabricOptions options, const Ucx* ucx)
    : options_(std::move(options)), ucx_(ucx), links_(options_.nodes) {}

absl::StatusOr<std::unique_ptr<UcxFabric>> UcxFabric::Open(
    UcxFabricOptions options) {
  absl::StatusOr<const Ucx*> ucx = OpenUcx();
  if (!ucx.ok()) return ucx.status();
  std::unique_ptr<UcxFabric> fabric(new UcxFabric(std::move(options), *ucx));
  if (absl::Status s = fabric->MakeWorker(); !s.ok()) return s;
  return fabric;
}

absl::Status UcxFabric::MakeWorker() {
  const auto failed = [this](const char* call, ucs_status_t status) {
    return absl::UnavailableError(
        absl::StrCat("UCX ", ucx_->version, ": ", call, ": ", Text(status)));
  };
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status =
      ucx_->ucp_worker_create(ucx_->context, &params, &worker_);
  if (status != UCS_OK) return failed("ucp_worker_create", status);
  status = ucx_->ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return failed("ucp_worker_get_efd", status);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucx_->ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return failed("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucx_->ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

void UcxFabric::AddPeer(uint32_t node, std::string address) {
  const Lock lock = LockForCall();
  links_[node] = std::make_unique<UcxLink>(this, node, std::move(address));
}

absl::Status UcxFabric::Connect(UcxLink* link) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(link->address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &OnLinkFailed, .arg = link};
  const Lock lock = LockForCall();
  if (closed_) return absl::AbortedError(kClosed);
  const ucs_status_t status =
      ucx_->ucp_ep_create(worker_, &params, &link->endpoint);
  return status == UCS_OK ? absl::OkStatus()
                          : absl::UnavailableError(Text(status));
}

// Messages of one byte, and who has not sent his.
class UcxFabric::Greetings : public TransferListener {
 public:
  explicit Greetings(uint32_t nodes) : open_(nodes) {}

  void Send(PeerLink* link, uint32_t node) {
    Add(node);
    link->Send(kGreetingSlot, &sent_, 1, {this, node});
  }
  void Receive(PeerLink* link, uint32_t node) {
    Add(node);
    link->Receive(kGreetingSlot, &got_, 1, {this, node});
  }
  void OnEnded(uint64_t node, const std::string& failure) override {
    std::lock_guard lock(mutex_);
    --open_[node];
    if (!failure.empty()) failed_ = {static_cast<uint32_t>(node), failure};
    changed_.notify_all();
  }
  // Returns who has failed, or has not ended within the time.
  std::optional<UcxFailure> Await(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    const auto open = [this] {
      return std::find_if(open_.begin(), open_.end(), [](int n) { return n; });
    };
    changed_.wait_until(lock, until,
                        [&] { return failed_ || open() == open_.end(); });
    if (failed_ || open() == open_.end()) return failed_;
    return UcxFailure{static_cast<uint32_t>(open() - open_.begin()), ""};
  }

 private:
  void Add(uint32_t node) {
    std::lock_guard lock(mutex_);
    ++open_[node];
  }

  std::mutex mutex_;  // guards what follows, but the two bytes
  std::condition_variable changed_;
  std::vector<int> open_;  // transfers by node
  std::optional<UcxFailure> failed_;
  std::byte sent_ = {};
  std::byte got_ = {};
};

// Of two nodes the one with the lower index connects first, and the other one
// when it has its greeting: when both do at once, UCX 1.13 ended the process in
// some orders of what followed.
std::optional<UcxFailure> UcxFabric::Start(
    std::chrono::milliseconds timeout, const std::function<bool()>& stopped) {
  thread_ = std::thread([this] { Run(); });
  greetings_ = std::make_unique<Greetings>(options_.nodes);
  const auto deadline = Clock::now() + timeout;
  for (const bool first : {true, false}) {
    for (const auto& link : links_) {
      if (link == nullptr) continue;
      if ((options_.self < link->node) == first) {
        if (absl::Status s = Connect(link.get()); !s.ok()) {
          return UcxFailure{link->node, std::string(s.message())};
        }
        greetings_->Send(link.get(), link->node);
      } else {
        greetings_->Receive(link.get(), link->node);
      }
    }
    while (const auto failure =
               greetings_->Await(std::min(deadline, Clock::now() + kPoll))) {
      if (!failure->why.empty()) return failure;
      if (stopped()) return UcxFailure{failure->node, "stopped"};
      if (Clock::now() < deadline) continue;
      return UcxFailure{
          failure->node,
          absl::StrCat("it has not answered over UCX ", ucx_->version,
                       " within ", timeout.count(),
                       " ms; can its network adapters be reached from here "
                       "(UCX_NET_DEVICES, UCX_TLS), and is its executor "
                       "running?")};
    }
  }
  return std::nullopt;
}

PeerLink* UcxFabric::LinkTo(uint32_t node) const { return links_[node].get(); }

std::string UcxFabric::Text(ucs_status_t status) const {
  if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    return "it has sent a message of another size than was expected";
  }
  return absl::StrCat("UCX: ", ucx_->ucs_status_string(status));
}

UcxFabric::Lock UcxFabric::LockForCall() {
  ++calling_;
  Lock lock(mutex_);
  --calling_;
  return lock;
}

void UcxFabric::WakeForProgress() {
  if (std::this_thread::get_id() != thread_.get_id()) {
    ucx_->ucp_worker_signal(worker_);
  }
}

// --- Ends --------------------------------------------------------------------

void UcxFabric::OnSent(void* handle, ucs_status_t status, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  UcxFabric* const fabric = request->link->fabric;
  fabric->Complete(request, status == UCS_OK ? "" : fabric->Text(status));
  fabric->ucx_->ucp_request_free(handle);
}

void UcxFabric::OnReceived(void* handle, ucs_status_t status,
                           const ucp_tag_recv_info_t* info, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  UcxFabric* const fabric = request->link->fabric;
  std::string failure;
  if (status == UCS_OK && info->length != request->bytes) {
    status = UCS_ERR_MESSAGE_TRUNCATED;
  }
  if (status != UCS_OK) failure = fabric->Text(status);
  fabric->Complete(request, failure);
  fabric->ucx_->ucp_request_free(handle);
}

void UcxFabric::OnLinkFailed(void* link, ucp_ep_h, ucs_status_t status) {
  auto* const failed = static_cast<UcxLink*>(link);
  failed->fabric->reported_.emplace_back(failed, status);
}

void UcxFabric::OnClosed(void* handle, ucs_status_t, void* fabric) {
  --static_cast<UcxFabric*>(fabric)->closing_;
  static_cast<UcxFabric*>(fabric)->ucx_->ucp_request_free(handle);
}

void UcxFabric::AddFailure(Ended ended) {
  if (failed_.empty() && failed_links_.empty()) first_failure_ = Clock::now();
  failed_.push_back(std::move(ended));
}

void UcxFabric::Complete(Request* request, const std::string& failure) {
  UcxLink* const link = request->link;
  if (posting_ == request) {
    posting_ = nullptr;
    posted_failure_ = failure;
  } else if (failure.empty()) {
    ended_.push_back({request->tag, ""});
  } else {
    // That the link has failed says more than that this one was cancelled.
    AddFailure({request->tag, link->failure.empty() ? failure : link->failure});
  }
  link->open.erase(request->self);
}

void UcxFabric::Fail(UcxLink* link, const std::string& why) {
  if (!link->failure.empty()) return;
  if (failed_.empty() && failed_links_.empty()) first_failure_ = Clock::now();
  link->failure = why;
  failed_links_.emplace_back(link->node, why);
  failing_.push_back(link);
  CancelReceives(link, nullptr);
  CloseEndpoint(link);
}

// UCX calls OnReceived() for what it can cancel, here or soon.
void UcxFabric::CancelReceives(UcxLink* link,
                               const TransferListener* listener) {
  std::vector<void*> handles;
  for (const Request& r : link->open) {
    if (!r.is_send && (listener == nullptr || r.tag.listener == listener)) {
      handles.push_back(r.handle);
    }
  }
  for (void* const handle : handles) {
    ucx_->ucp_request_cancel(worker_, handle);
  }
}

void UcxFabric::CloseEndpoint(UcxLink* link) {
  if (link->endpoint == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &OnClosed;
  param.user_data = this;
  ++closing_;
  const ucs_status_ptr_t handle =
      ucx_->ucp_ep_close_nbx(std::exchange(link->endpoint, nullptr), &param);
  if (!UCS_PTR_IS_PTR(handle)) --closing_;  // at once, without OnClosed()
}

void UcxFabric::Close() {
  const Lock lock = LockForCall();
  if (std::exchange(closed_, true)) return;
  closed_since_ = Clock::now();
  failures_matter_ = false;
  for (const auto& link : links_) {
    if (link != nullptr) Fail(link.get(), kClosed);
  }
  WakeForProgress();
}

UcxFabric::~UcxFabric() {
  Close();
  // If Start() was not called, there are endpoints to close nevertheless.
  if (thread_.joinable()) {
    thread_.join();
  } else if (worker_ != nullptr) {
    Run();
  }
  if (worker_ != nullptr && !leaks_) ucx_->ucp_worker_destroy(worker_);
}

// --- The thread --------------------------------------------------------------

void UcxFabric::Run() {
  for (;;) {
    std::vector<Ended> ended;
    std::vector<std::pair<uint32_t, std::string>> failed_links;
    bool sleeps = false;
    int sleep_ms = -1;
    {
      const Lock lock(mutex_);
      const bool idle = ucx_->ucp_worker_progress(worker_) == 0;
      for (const auto& [link, status] : std::exchange(reported_, {})) {
        Fail(link, Text(status));
      }
      if (closed_ && Clock::now() > closed_since_ + kClosePatience) GiveUp();
      ended.swap(ended_);
      if (!failed_.empty() || !failed_links_.empty()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(
            first_failure_ + options_.failure_grace - Clock::now());
        if (!failures_matter_ || left.count() <= 0) {
          ended.insert(ended.end(), failed_.begin(), failed_.end());
          failed_.clear();
          failed_links.swap(failed_links_);
          if (!failures_matter_) failed_links.clear();
        } else {
          sleep_ms = static_cast<int>(left.count());
        }
      }
      if (idle && ended.empty() && failed_links.empty()) {
        const bool over = IsOver();
        if (closed_ && over) return;
        // The descriptor does not tell of the end of a closed link.
        if (!over) sleep_ms = 1;
        sleeps = ucx_->ucp_worker_arm(worker_) == UCS_OK;
      }
    }
    if (!failed_links.empty() && options_.on_failed) {
      for (const auto& [node, why] : failed_links) {
        options_.on_failed(node, why);
      }
    }
    for (const Ended& e : ended) e.tag.listener->OnEnded(e.tag.tag, e.failure);
    if (sleeps) {
      pollfd event{event_fd_, POLLIN, 0};
      poll(&event, 1, sleep_ms);
    }
    // The mutex is not fair.
    while (calling_ > 0) std::this_thread::yield();
  }
}

bool UcxFabric::IsOver() const {
  return closing_ == 0 &&
         std::all_of(failing_.begin(), failing_.end(),
                     [](const UcxLink* link) { return link->open.empty(); });
}

void UcxFabric::GiveUp() {
  if (IsOver()) return;
  leaks_ = true;  // the worker, which makes no progress any more
  closing_ = 0;
  for (UcxLink* const link : failing_) {
    for (const Request& r : link->open) AddFailure({r.tag, link->failure});
    link->open.clear();
  }
}

}  // namespace maypole::worker
