// The C ABI of ElasticDriver.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/elastic_driver.h"
#include "client/launcher/elastic/elastic_driver.h"

using maypole::launcher::ElasticDriver;
using maypole::launcher::Exit;
using maypole::launcher::HostSlots;
using maypole::launcher::Time;

namespace {

constexpr double kLongest = 1e9;  // s

std::chrono::milliseconds Milliseconds(double seconds) {
  const double shortest = std::clamp(seconds, 0.0, kLongest);
  return std::chrono::milliseconds(std::llround(shortest * 1000));
}

Time At(double now) {
  return Time(std::chrono::nanoseconds(std::llround(now * 1e9)));
}

ElasticDriver::Settings SettingsOf(const maypole_elastic_settings& settings) {
  return {.first_size = settings.first_size,
          .min_size = settings.min_size,
          .max_size = settings.max_size,
          .patience = Milliseconds(settings.patience),
          .reset_limit = settings.reset_limit,
          .shortest_cooldown = Milliseconds(settings.shortest_cooldown),
          .longest_cooldown = Milliseconds(settings.longest_cooldown),
          .reset_limit_name = "reset_limit",
          .patience_name = "elastic_timeout"};
}

// An action in C's form; its text is set when the action is handed out.
struct Flat {
  int kind = 0;
  int node = -1;
  int process = -1;
  int value = 0;
  std::string text{};
};

Flat Flatten(const ElasticDriver::StartNode& a) {
  return {.kind = MAYPOLE_START_NODE, .node = a.node, .text = a.host};
}
Flat Flatten(const ElasticDriver::StopNode& a) {
  return {.kind = MAYPOLE_STOP_NODE, .node = a.node};
}
Flat Flatten(const ElasticDriver::StartProcess& a) {
  return {.kind = MAYPOLE_START_PROCESS,
          .node = a.node,
          .process = a.process,
          .value = a.slot};
}
Flat Flatten(const ElasticDriver::SignalProcess& a) {
  return {
      .kind = MAYPOLE_SIGNAL_PROCESS, .process = a.process, .value = a.signal};
}
Flat Flatten(const ElasticDriver::Tell& a) {
  return {.kind = MAYPOLE_TELL, .text = a.line};
}
Flat Flatten(const ElasticDriver::EndBadly& a) {
  return {.kind = MAYPOLE_END_BADLY, .text = a.why};
}

}  // namespace

struct maypole_elastic_driver {
  explicit maypole_elastic_driver(const ElasticDriver::Settings& settings)
      : driver(settings) {}

  void Take(const ElasticDriver::Actions& actions) {
    for (const ElasticDriver::Action& action : actions) {
      open.push_back(
          std::visit([](const auto& a) { return Flatten(a); }, action));
    }
  }

  ElasticDriver driver;
  std::deque<Flat> open;  // actions that were not handed out
  Flat last;              // that was
};

#pragma GCC visibility push(default)
extern "C" {

maypole_elastic_driver* maypole_elastic_driver_new(
    const maypole_elastic_settings* settings) {
  return new maypole_elastic_driver(SettingsOf(*settings));
}

void maypole_elastic_driver_free(maypole_elastic_driver* driver) {
  delete driver;
}

void maypole_elastic_driver_on_hosts(maypole_elastic_driver* driver,
                                     int32_t count, const char* const* names,
                                     const int32_t* slots, double now) {
  std::vector<HostSlots> hosts;
  for (int32_t i = 0; i < count; ++i) hosts.push_back({names[i], slots[i]});
  driver->Take(driver->driver.OnHosts(hosts, At(now)));
}

void maypole_elastic_driver_on_node_ready(maypole_elastic_driver* driver,
                                          int32_t node, double now) {
  driver->Take(driver->driver.OnNodeReady(node, At(now)));
}

void maypole_elastic_driver_on_node_lost(maypole_elastic_driver* driver,
                                         int32_t node, const char* why,
                                         double now) {
  driver->Take(driver->driver.OnNodeLost(node, why, At(now)));
}

void maypole_elastic_driver_on_process_end(maypole_elastic_driver* driver,
                                           int32_t process, int32_t status,
                                           int finished, const char* how,
                                           double now) {
  const Exit exit{.signaled = status < 0,
                  .value = std::abs(status),
                  .finished = finished != 0};
  bool failed = false;
  const auto actions = driver->driver.OnProcessEnd(
      process, exit, how == nullptr ? Describe(exit) : how, At(now), &failed);
  if (failed && !driver->driver.over()) {  // else the actions say why
    driver->open.push_back(
        {.kind = MAYPOLE_PROCESS_FAILED, .process = process});
  }
  driver->Take(actions);
}

void maypole_elastic_driver_on_time(maypole_elastic_driver* driver,
                                    double now) {
  driver->Take(driver->driver.OnTime(At(now)));
}

int maypole_elastic_driver_next(maypole_elastic_driver* driver,
                                maypole_elastic_action* action) {
  if (driver->open.empty()) return 0;
  driver->last = std::move(driver->open.front());
  driver->open.pop_front();
  const Flat& last = driver->last;
  *action = {last.kind, last.node, last.process, last.value, last.text.c_str()};
  return 1;
}

int maypole_elastic_driver_finishing(const maypole_elastic_driver* driver) {
  return driver->driver.finishing() ? 1 : 0;
}

int maypole_elastic_driver_running(const maypole_elastic_driver* driver) {
  return driver->driver.running();
}

}  // extern "C"
#pragma GCC visibility pop
