#include "coordinator/dashboard/page_data.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/dashboard/assets.h"

namespace maypole::coordinator {
namespace {

using Json = nlohmann::json;

Json Parsed(const proto::StatusReply& status,
            const std::vector<EventRing::Event>& events = {}) {
  return Json::parse(PageData(status, events));
}

TEST(PageDataTest, HasJobsNodesAndRanks) {
  proto::StatusReply status;
  status.set_version("0.1.0");
  proto::JobStatus* job = status.add_jobs();
  job->set_job("train");
  job->set_state("running");
  job->set_tier("negotiated");
  job->set_schedule_ended("broadcast 'x'");
  job->mutable_stats()->set_steps_per_second(12.5);
  job->mutable_stats()->set_operations_per_run(8);
  job->mutable_timeline()->set_state("on");
  job->mutable_timeline()->set_path("t.json");
  for (const uint32_t rank : {1, 0}) {
    proto::NodeStatus* node = job->add_nodes();
    node->set_node("n" + std::to_string(rank));
    node->add_ranks(rank);
    proto::RankStatus* r = node->add_rank_status();
    r->set_rank(rank);
    r->set_pid(100 + rank);
    r->set_state(rank == 0 ? "running" : "late");
    for (const uint32_t busy : {73, 0}) {
      proto::GpuStatus* gpu = node->add_gpus();
      gpu->set_uuid("GPU-1");
      gpu->set_used_bytes(30);
      gpu->set_total_bytes(80);
      if (busy > 0) gpu->set_busy_percent(busy);
    }
    if (rank == 1) r->set_late(0.876);
    if (rank == 1) r->set_waiting(0.004);
  }
  proto::PendingOperation* op = job->add_pending();
  op->set_name("w");
  op->set_process_set(2);
  op->set_missing(3);
  op->add_missing_nodes("n1");
  const Json page = Parsed(status);
  EXPECT_EQ(page["version"], "0.1.0");
  const Json& train = page["jobs"][0];
  EXPECT_EQ(train["stats"]["steps"], 12.5);
  EXPECT_EQ(train["stats"]["perRun"], 8);
  EXPECT_EQ(train["timeline"]["state"], "on");
  EXPECT_EQ(train["timeline"]["path"], "t.json");
  EXPECT_EQ(train["nodes"][1]["gpus"],
            Json::parse(R"([["GPU-1", 30, 80, 73], ["GPU-1", 30, 80, null]])"));
  EXPECT_EQ(train["left"], "broadcast 'x'");
  EXPECT_EQ(train["nodes"][0]["node"], "n0");  // by rank
  EXPECT_EQ(train["nodes"][0]["ranks"], Json::parse("[[0, 0, -1, -1, 100]]"));
  EXPECT_EQ(train["nodes"][1]["ranks"], Json::parse("[[1, 2, 88, 0, 101]]"));
  EXPECT_EQ(train["pending"][0]["what"], "allreduce 'w' of process set 2");
  EXPECT_EQ(train["pending"][0]["more"], 2);
}

TEST(PageDataTest, AJobWithoutFiguresHasNone) {
  proto::StatusReply status;
  status.add_jobs()->set_job("starting");
  EXPECT_TRUE(Parsed(status)["jobs"][0]["stats"].is_null());
  EXPECT_TRUE(Parsed(status)["jobs"][0]["timeline"].is_null());
}

TEST(PageDataTest, EventsAreThere) {
  proto::Event event;
  event.set_number(7);
  event.set_text("event=x reason=\"\xff\\\"");
  const Json page = Parsed({}, {std::make_shared<proto::Event>(event)});
  EXPECT_EQ(page["events"][0]["number"], 7);
  EXPECT_EQ(page["events"][0]["text"], "event=x reason=\"\uFFFD\\\"");
}

TEST(PageDataTest, AnErrorIsAText) {
  EXPECT_EQ(Json::parse(ErrorData("it \"leads\" no more"))["error"],
            "it \"leads\" no more");
}

TEST(PageDataTest, ThousandNodesAreShort) {
  proto::StatusReply status;
  proto::JobStatus* job = status.add_jobs();
  for (uint32_t n = 0; n < 1024; ++n) {
    proto::NodeStatus* node = job->add_nodes();
    node->set_node("node" + std::to_string(n));
    node->set_host("host" + std::to_string(n));
    for (uint32_t i = 0; i < 8; ++i) {
      proto::RankStatus* r = node->add_rank_status();
      r->set_rank(8 * n + i);
      r->set_pid(1000000 + i);
      r->set_late(0.5);
      r->set_waiting(0.25);
    }
  }
  EXPECT_LT(PageData(status, {}).size(), 400'000u);
}

TEST(AssetsTest, TheFilesAreComplete) {
  std::vector<absl::string_view> paths;
  for (const Asset& asset : Assets()) {
    paths.push_back(asset.path);
    EXPECT_FALSE(asset.bytes.empty());
  }
  EXPECT_EQ(paths, (std::vector<absl::string_view>{"/", "/app.js", "/style.css",
                                                   "/icon.svg", "/chart.js"}));
  EXPECT_EQ(Assets()[0].bytes.find("<!DOCTYPE html>"), 0u);
}

}  // namespace
}  // namespace maypole::coordinator
