// SPDX-License-Identifier: Apache-2.0
// Replays the recorded context cases of TensorFlow step by step, as far as their steps exist here.
// A step that is neither known nor in the list of foreign steps fails the test.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "cohort/strategy/internal/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {
namespace {

using Json = nlohmann::json;

// Steps that synchronous strategies do not support: variables and their creators, merge calls, the
// older calls of StrategyExtended; copies, which do not compile; contexts kept after their run.
const std::set<std::string> kForeignSteps = {"var",
                                             "read",
                                             "assign",
                                             "update",
                                             "update_non_slot",
                                             "reduce_to",
                                             "emit",
                                             "merge_call",
                                             "ctx_call",
                                             "capture_ctx",
                                             "batch_reduce_to",
                                             "call_for_each",
                                             "strategy",
                                             "if_replica",
                                             "new_default",
                                             "copy_strategy",
                                             "batch_size",
                                             "enter device",
                                             "enter creator"};
const std::set<std::string> kForeignStrategies = {"central_storage"};
// These steps change nothing, so the other steps of their case run.
const std::set<std::string> kForeignProperties = {"cluster_resolver",    "in_multi_worker_mode",
                                                  "should_init",         "should_checkpoint",
                                                  "should_save_summary", "between_graph"};

std::string name_of_step(const Json& step) {
  const std::string name = step.at("do");
  const std::string what = step.value("what", "");
  return name == "enter" && what != "scope" && what != "again" ? name + " " + what : name;
}

bool has_foreign_step(const Json& steps) {
  for (const Json& step : steps) {
    if (kForeignSteps.contains(name_of_step(step))) return true;
    if (step.contains("body") && has_foreign_step(step["body"])) return true;
  }
  return false;
}

bool is_foreign(const Json& content) {
  const std::string kind = content.value("strategy", Json::object()).value("kind", "default");
  return kForeignStrategies.contains(kind) || has_foreign_step(content.at("steps"));
}

// Turns "failed_precondition" into "FailedPrecondition".
std::string recorded_name(ErrorCode code) {
  std::string name;
  bool is_upper = true;
  for (const char c : std::string(name_of(code))) {
    if (c != '_') name += is_upper ? static_cast<char>(std::toupper(c)) : c;
    is_upper = c == '_';
  }
  return name;
}

Json as_json(const Error& error) {
  return {{"code", recorded_name(error.code())}, {"message", error.what()}};
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Compares the error's code and the words that its message must contain, but not its Python type.
void expect_error(const Json& expected, const Json& got) {
  EXPECT_EQ(got.value("code", "none"), expected.value("code", "none"));
  const std::string message = lower(got.value("message", ""));
  for (const std::string word : expected.value("words", Json::array())) {
    EXPECT_NE(message.find(lower(word)), std::string::npos)
        << "expected '" << word << "' in " << message;
  }
}

// One case. Used only from one thread.
class Replay {
 public:
  explicit Replay(const Json& content) {
    add("default", default_strategy());
    make("S", content.value("strategy", Json{{"kind", "default"}}));
    const Json others = content.value("others", Json::object());
    for (const auto& [name, spec] : others.items()) make(name, spec);
  }
  ~Replay() {
    set_strategy_if_free();
    while (!open_.empty()) open_.pop_back();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void step(const Json& content) {
    SCOPED_TRACE(content.dump());
    if (content.at("do") == "prop" && kForeignProperties.contains(content.at("name"))) return;
    Json error = Json::object();
    try {
      act(content);
    } catch (const Error& thrown) {
      error = as_json(thrown);
    }
    expect_error(content.value("error", Json::object()), error);
  }

 private:
  using Emits = std::map<std::string, std::map<std::string, Json>>;

  void add(const std::string& name, Strategy& strategy) {
    strategies_[name] = &strategy;
    names_.emplace(&strategy, name);
  }
  void make(const std::string& name, const Json& spec) {
    const std::string kind = spec.at("kind");
    if (kind == "default") return add(name, default_strategy());
    std::vector<std::string> devices = spec.value("devices", std::vector<std::string>());
    for (int i = 0; spec.value("devices", Json::array()).empty() && i < spec.value("replicas", 1);
         ++i)
      devices.push_back("CPU:" + std::to_string(i));
    if (kind == "one_device") {
      made_.push_back(std::make_unique<OneDeviceStrategy>(devices.at(0)));
    } else {
      ASSERT_EQ(kind, "mirrored");
      made_.push_back(std::make_unique<MirroredStrategy>(devices));
    }
    add(name, *made_.back());
  }
  Strategy& strategy_of(const Json& step) { return *strategies_.at(step.value("strategy", "S")); }

  void act(const Json& step) {
    const std::string name = name_of_step(step);
    if (name == "probe") {
      expect_parts(step.at("expect"), probe());
    } else if (name == "enter") {
      // In TensorFlow one scope object is entered several times; here each entry is an object.
      const std::string scope = step.at(step.at("what") == "again" ? "of" : "as");
      const std::string strategy = step.value("strategy", entered_[scope]);
      open_.emplace_back(scope, std::make_unique<StrategyScope>(*strategies_.at(strategy)));
      entered_[scope] = strategy;
    } else if (name == "exit") {
      const auto last = std::find_if(open_.rbegin(), open_.rend(), [&](const auto& scope) {
        return scope.first == step.at("of");
      });
      ASSERT_NE(last, open_.rend());
      open_.erase(std::next(last).base());
    } else if (name == "set_strategy") {
      set_strategy(step.at("to").is_null() ? nullptr : strategies_.at(step.at("to")));
    } else if (name == "run") {
      run(step);
    } else if (name == "reduce") {
      strategy_of(step).reduce(ReduceOp::sum, PerReplica<at::Tensor>::bare(at::ones({})));
    } else if (name == "prop") {
      property(step);
    } else if (name == "raise") {
      throw Error(step.at("kind") == "KeyError" ? ErrorCode::not_found : ErrorCode::unknown,
                  step.at("msg").get<std::string>());
    } else {
      ADD_FAILURE() << "an unknown step";
    }
  }

  void run(const Json& step) {
    Emits emits;
    strategy_of(step).run([&] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      for (const Json& inner : step.at("body")) act_in_replica(inner, id, emits);
    });
    const Json expected = step.value("emits", Json::object());
    for (const auto& [label, by_replica] : expected.items()) {
      for (const auto& [replica, values] : by_replica.items()) {
        const Json got = emits[label][replica];
        ASSERT_EQ(got.size(), values.size()) << label << " " << replica;
        for (std::size_t i = 0; i < values.size(); ++i) expect_parts(values[i], got[i]);
      }
    }
  }
  void act_in_replica(const Json& step, int id, Emits& emits) {
    const std::string replica = "r" + std::to_string(id);
    const auto emit = [&](Json value) {
      const std::lock_guard lock(emits_mutex_);
      emits[step.at("label")][replica].push_back(std::move(value));
    };
    if (step.at("do") == "probe") {
      emit(probe());
    } else if (step.at("do") == "try") {
      Json result = Json::object();
      try {
        for (const Json& inner : step.at("body")) act(inner);
      } catch (const Error& error) {
        result = {{"error", as_json(error)}};
      }
      emit(result);
    } else {
      act(step);
    }
  }

  void property(const Json& step) {
    const std::string name = step.at("name");
    Strategy& strategy = strategy_of(step);
    Json value;
    if (name == "num_replicas_in_sync") value = strategy.num_replicas_in_sync();
    if (name == "worker_devices") value = strategy.worker_devices();
    if (name == "parameter_devices") value = strategy.parameter_devices();
    EXPECT_EQ(value, step.value("expect", Json()));
  }

  Json probe() const {
    const ReplicaContext* replica = get_replica_context();
    Json state = {{"cross_replica", in_cross_replica_context()},
                  {"strategy", names_.at(&get_strategy())},
                  {"has_strategy", has_strategy()},
                  {"replica_context", nullptr}};
    if (replica == nullptr) return state;
    state["replica_context"] = names_.at(&replica->strategy());
    state["replica_id"] = replica->replica_id_in_sync_group();
    state["num_replicas"] = replica->strategy().num_replicas_in_sync();
    return state;
  }
  static void expect_parts(const Json& expected, const Json& got) {
    for (const auto& [key, value] : expected.items()) {
      if (key == "error") {
        expect_error(value, got.value(key, Json::object()));
      } else {
        EXPECT_EQ(got.value(key, Json()).dump(), value.dump()) << key;
      }
    }
  }
  void set_strategy_if_free() {
    if (open_.empty()) set_strategy(nullptr);
  }

  std::mutex emits_mutex_;  // replicas emit at the same time
  std::vector<std::unique_ptr<Strategy>> made_;
  std::map<std::string, Strategy*> strategies_;
  std::map<const Strategy*, std::string> names_;
  std::map<std::string, std::string> entered_;  // the strategy of each scope, by name
  std::vector<std::pair<std::string, std::unique_ptr<StrategyScope>>> open_;
};

struct GoldenCase {
  Json content;
  friend void PrintTo(const GoldenCase& each, std::ostream* out) { *out << each.content["id"]; }
};

std::vector<GoldenCase> cases() {
  std::vector<GoldenCase> found;
  std::ifstream stream(COHORT_SOURCE_DIR "/tests/conformance/strategy/context.json");
  if (!stream) return found;
  for (const Json& content : Json::parse(stream)) {
    if (!is_foreign(content)) found.push_back({content});
  }
  return found;
}

class ContextGolden : public testing::ContextFixture,
                      public ::testing::WithParamInterface<GoldenCase> {};

TEST_P(ContextGolden, DoesWhatWasRecorded) {
  Replay replay(GetParam().content);
  for (const Json& step : GetParam().content.at("steps")) replay.step(step);
}

INSTANTIATE_TEST_SUITE_P(Cases, ContextGolden, ::testing::ValuesIn(cases()), [](const auto& each) {
  std::string name = each.param.content.at("id");
  std::erase(name, '-');
  return name;
});

// Regression: a missing file counted as a file without cases, and no test failed.
TEST(ContextGoldenFile, HasCases) { EXPECT_GE(cases().size(), 14U); }

}  // namespace
}  // namespace cohort
