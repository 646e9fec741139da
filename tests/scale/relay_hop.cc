// relay_hop: measures how long one node takes to pass a message on
// (docs/relays.md).
//
// Purpose: three threads stand for a parent, a relay and its children,
// connected by TCP over loopback and by the real PeerChannels. The parent sends
// what a coordinator sends for a step of --operations operations on --nodes
// nodes; the relay handles it as an executor does. The measured time ends when
// the last child has read it and parsed the message in it. The children share a
// thread, so work that would run on that many machines in parallel runs
// sequentially.
//
//   relay_hop --nodes=1024 --children=32 --rounds=500
//
// Prints one line of JSON. scale.py runs it.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/system/fd.h"
#include "proto/coordinator.pb.h"
#include "worker/network/peer_channels.h"

ABSL_FLAG(uint32_t, nodes, 1024, "Nodes of the job.");
ABSL_FLAG(uint32_t, children, 32, "Children of the relay.");
ABSL_FLAG(uint32_t, operations, 160, "Operations in the message.");
ABSL_FLAG(uint32_t, rounds, 500, "Messages.");

namespace maypole::scale {
namespace {

using Clock = std::chrono::steady_clock;
using worker::PeerChannels;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

// Both ends of a connection over loopback.
std::pair<Fd, Fd> Connection() {
  const Fd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  Check(bind(listener.get(), address, bytes) == 0, "bind");
  Check(listen(listener.get(), 1) == 0, "listen");
  Check(getsockname(listener.get(), address, &bytes) == 0, "getsockname");
  Fd one(socket(AF_INET, SOCK_STREAM, 0));
  Check(connect(one.get(), address, bytes) == 0, "connect");
  Fd other(accept(listener.get(), nullptr, nullptr));
  Check(other.valid(), "accept");
  for (const Fd* fd : {&one, &other}) {
    const int on = 1;
    setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return {std::move(one), std::move(other)};
}

// With nodes 0 to connections.size() - 1.
std::unique_ptr<PeerChannels> Channels(std::vector<Fd> connections) {
  std::vector<worker::PeerStream> sockets;
  for (Fd& fd : connections) {
    sockets.emplace_back(worker::PeerSocket(std::move(fd)));
  }
  std::vector<std::string> names(sockets.size());
  return std::make_unique<PeerChannels>(std::move(sockets), std::move(names));
}

std::unique_ptr<PeerChannels> Channel(Fd connection) {
  std::vector<Fd> one;
  one.push_back(std::move(connection));
  return Channels(std::move(one));
}

proto::PeerMessage Message() {
  proto::CoordinatorMessage inner;
  proto::Run* run = inner.mutable_execute()->add_runs();
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_operations); ++i) {
    proto::RunOperation* o = run->add_operations();
    o->set_id(i + 1);
    o->set_generation(1000);
  }
  proto::PeerMessage message;
  proto::Relayed* relayed = message.mutable_relayed();
  relayed->set_epoch(1);
  relayed->set_incarnation("0123456789abcdef");
  relayed->set_message(inner.SerializeAsString());
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_nodes); ++i) {
    relayed->add_sequences(1000);
    relayed->add_acknowledged(1000);
  }
  return message;
}

void AwaitReadable(const std::vector<const PeerChannels*>& channels) {
  std::vector<pollfd> fds;
  for (const PeerChannels* c : channels) fds.push_back({c->fd(), POLLIN, 0});
  Check(poll(fds.data(), fds.size(), -1) > 0, "poll");
}

// As ExecutorCore::OnRelayed().
void TakeOwn(const proto::Relayed& relayed) {
  proto::CoordinatorMessage own;
  Check(own.ParseFromString(relayed.message()) &&
            own.execute().runs(0).operations_size() ==
                static_cast<int>(absl::GetFlag(FLAGS_operations)),
        "a relayed message");
}

class Hop {
 public:
  Hop() {
    auto [parent, child] = Connection();
    parent_ = Channel(std::move(parent));
    std::vector<Fd> of_relay;
    of_relay.push_back(std::move(child));
    for (uint32_t i = 1; i <= absl::GetFlag(FLAGS_children); ++i) {
      auto [up, down] = Connection();
      of_relay.push_back(std::move(up));
      children_.push_back(Channel(std::move(down)));
      nodes_.push_back(i);
    }
    relay_ = Channels(std::move(of_relay));
  }

  // Microseconds of each round.
  std::vector<double> Run(uint32_t rounds) {
    std::thread relay([&] { Relay(rounds); });
    std::thread children([&] { ReadAll(rounds); });
    const proto::PeerMessage message = Message();
    std::vector<double> times;
    for (uint32_t i = 0; i < rounds; ++i) {
      const Clock::time_point begin = Clock::now();
      parent_->Send({0}, message);
      done_.wait(i);
      times.push_back(
          std::chrono::duration<double, std::micro>(last_ - begin).count());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    relay.join();
    children.join();
    return times;
  }

 private:
  void Relay(uint32_t rounds) {
    for (uint32_t passed = 0; passed < rounds;) {
      AwaitReadable({relay_.get()});
      for (const auto& [from, message] : relay_->Receive()) {
        proto::PeerMessage copy;
        *copy.mutable_relayed() = message.relayed();
        relay_->Send(nodes_, copy);
        TakeOwn(message.relayed());
        ++passed;
      }
    }
  }

  void ReadAll(uint32_t rounds) {
    std::vector<const PeerChannels*> all;
    for (const auto& child : children_) all.push_back(child.get());
    for (uint32_t i = 0; i < rounds; ++i) {
      for (size_t read = 0; read < children_.size();) {
        AwaitReadable(all);
        for (const auto& child : children_) {
          for (const auto& [from, message] : child->Receive()) {
            TakeOwn(message.relayed());
            ++read;
          }
        }
      }
      last_ = Clock::now();
      done_ = i + 1;
      done_.notify_one();
    }
  }

  std::unique_ptr<PeerChannels> parent_, relay_;
  std::vector<std::unique_ptr<PeerChannels>> children_;
  std::vector<uint32_t> nodes_;  // the children, as the relay knows them
  Clock::time_point last_;       // published by done_
  std::atomic<uint32_t> done_{0};
};

int Main() {
  Hop hop;
  hop.Run(20);
  Hop measured;
  std::vector<double> us = measured.Run(absl::GetFlag(FLAGS_rounds));
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"nodes\": %u, \"children\": %u, \"bytes\": %zu, \"p50_us\": %.1f, "
      "\"p99_us\": %.1f}\n",
      absl::GetFlag(FLAGS_nodes), absl::GetFlag(FLAGS_children),
      Message().ByteSizeLong(), us[us.size() / 2], us[us.size() * 99 / 100]);
  return 0;
}

}  // namespace
}  // namespace maypole::scale

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::scale::Main();
}
