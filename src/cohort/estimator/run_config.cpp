// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/run_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/estimator/cluster_tasks.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::estimator {

using Json = nlohmann::json;

// Texts are as TF_CONFIG has them; an absent key has none.
struct RunConfig::Keys {
  std::optional<std::string> service, session_master, eval_session_master, model_dir;
};

namespace {

constexpr std::string_view kEvaluator = "evaluator";

// TfConfigResolver, which reads it too, has refused other texts.
Json tf_config() {
  const char* const text = std::getenv("TF_CONFIG");
  return text == nullptr ? Json::object() : Json::parse(text);
}

std::optional<std::string> text_of_key(const Json& config, const char* key) {
  if (!config.contains(key) || config.at(key).is_null()) return std::nullopt;
  COHORT_CHECK(config.at(key).is_string(), ErrorCode::invalid_argument,
               "[estimator.run_config] expected a text for TF_CONFIG key ", key, ", got ",
               config.at(key).dump(), "; write it in quotes, or leave it out");
  return config.at(key).get<std::string>();
}

std::optional<std::string> service_of(const Json& config) {
  if (!config.contains("service") || config.at("service").is_null()) return std::nullopt;
  const std::string text = config.at("service").dump();
  if (config.at("service").is_object()) return text;
  throw Error(ErrorCode::invalid_argument,
              "[estimator.run_config] expected a JSON object for TF_CONFIG key service, got " +
                  text + "; write {…}, or leave it out",
              ErrorCause::wrong_type);
}

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

template <class T>
void check_range(std::string_view option, const T& value, bool is_good, std::string_view range) {
  COHORT_CHECK(is_good, ErrorCode::invalid_argument, "[estimator.run_config] expected ", option,
               " ", range, ", got ", value);
}

Strategy* merged(std::string_view name, Strategy* direct, Strategy* other) {
  COHORT_CHECK(direct == nullptr || other == nullptr, ErrorCode::invalid_argument,
               "[estimator.run_config] expected either ", name, " or experimental_distribute.",
               name, ", got both; leave one out");
  return direct != nullptr ? direct : other;
}

std::string temporary_folder() {
  std::string path = (std::filesystem::temp_directory_path() / "cohort_XXXXXX").string();
  COHORT_CHECK(::mkdtemp(path.data()) != nullptr, ErrorCode::failed_precondition,
               "[estimator.run_config] expected to make a folder '", path,
               "', since no model_dir was given; give one");
  log_warn("[estimator.run_config] no model_dir was given: checkpoints are written to '", path,
           "', which no later start finds");
  return path;
}

}  // namespace

RunConfig::RunConfig(RunConfigOptions options) : options_(std::move(options)) {
  COHORT_CHECK(!has_strategy() || in_cross_replica_context(), ErrorCode::failed_precondition,
               "[estimator.run_config] expected a call outside of run(), got one in a replica of '",
               get_strategy().name(), "'; make the RunConfig before the training");
  check_options();
  merge_strategies();
  const ClusterResolver* resolver = options_.cluster_resolver.get();
  // The tasks of a coordinator run no program, so it may train alone in its cluster.
  const bool is_coordinator =
      dynamic_cast<const ParameterServerStrategy*>(options_.train_distribute) != nullptr;
  if (resolver == nullptr && options_.train_distribute != nullptr && !is_coordinator)
    resolver = options_.train_distribute->cluster_resolver();
  Keys keys;
  const TfConfigResolver of_environment;
  if (resolver == nullptr) resolver = &of_environment;
  if (options_.cluster_resolver == nullptr) {
    of_environment.validate();
    const Json config = tf_config();
    keys = {service_of(config), text_of_key(config, "session_master"),
            text_of_key(config, "eval_session_master"), text_of_key(config, "model_dir")};
  }
  service_ = keys.service;
  const ClusterSpec cluster = resolver->cluster_spec();
  choose_mode(cluster);
  set_task(cluster, *resolver, keys);
  set_model_dir(keys);
}

void RunConfig::check_options() const {
  const RunConfigOptions& own = options_;
  const std::string_view not_negative = ">= 0", positive = "> 0";
  check_range("save_summary_steps", own.save_summary_steps, own.save_summary_steps >= 0,
              not_negative);
  const std::int64_t steps = own.save_checkpoints_steps.value_or(0);
  check_range("save_checkpoints_steps", steps, steps >= 0, not_negative);
  const Duration interval = own.save_checkpoints_interval.value_or(Duration::zero());
  check_range("save_checkpoints_interval", seconds_of(interval), interval >= Duration::zero(),
              not_negative);
  COHORT_CHECK(!own.save_checkpoints_steps || !own.save_checkpoints_interval,
               ErrorCode::invalid_argument,
               "[estimator.run_config] expected save_checkpoints_steps or "
               "save_checkpoints_interval, got both: ",
               steps, " and ", seconds_of(interval), " s; leave one out");
  check_range("keep_checkpoint_max", own.keep_checkpoint_max, own.keep_checkpoint_max >= 0,
              not_negative);
  check_range("keep_checkpoint_every", seconds_of(own.keep_checkpoint_every),
              own.keep_checkpoint_every >= Duration::zero(), not_negative);
  check_range("log_step_count_steps", own.log_step_count_steps, own.log_step_count_steps > 0,
              positive);
  check_range("session_creation_timeout", seconds_of(own.session_creation_timeout),
              own.session_creation_timeout > Duration::zero(), positive);
  const Duration delay = own.max_worker_delay.value_or(Duration::zero());
  check_range("max_worker_delay", seconds_of(delay), delay >= Duration::zero(), not_negative);
}

void RunConfig::merge_strategies() {
  DistributeConfig& other = options_.experimental_distribute;
  options_.train_distribute =
      merged("train_distribute", options_.train_distribute, other.train_distribute);
  options_.eval_distribute =
      merged("eval_distribute", options_.eval_distribute, other.eval_distribute);
  other.train_distribute = other.eval_distribute = nullptr;
}

// As distribute_coordinator_training.init_run_config().
void RunConfig::choose_mode(const ClusterSpec& cluster) {
  if (const auto& remote = options_.experimental_distribute.remote_cluster) {
    COHORT_CHECK(!cluster, ErrorCode::invalid_argument,
                 "[estimator.run_config] expected either experimental_distribute.remote_cluster or "
                 "a cluster in TF_CONFIG, got both: ",
                 remote->to_string(), " and ", cluster.to_string(), "; leave one out");
    COHORT_CHECK(options_.train_distribute != nullptr, ErrorCode::invalid_argument,
                 "[estimator.run_config] expected train_distribute beside "
                 "experimental_distribute.remote_cluster ",
                 remote->to_string(), ", got none; set it, or leave the cluster out");
    mode_ = CoordinatorMode::standalone_client;
  } else if (cluster && cluster.tasks().count("master") == 0 &&
             options_.train_distribute != nullptr) {
    mode_ = CoordinatorMode::independent_worker;
  }
}

void RunConfig::set_task(const ClusterSpec& cluster, const ClusterResolver& resolver,
                         const Keys& keys) {
  if (mode_ == CoordinatorMode::standalone_client) {
    cluster_ = *options_.experimental_distribute.remote_cluster;
    return;
  }
  // The coordinator of parameter servers needs no address, and so may have no task.
  const bool is_coordinator =
      cluster && dynamic_cast<ParameterServerStrategy*>(options_.train_distribute) != nullptr &&
      resolver.task_type().value_or("chief") == "chief";
  if (cluster && !is_coordinator) check_has_task(cluster, resolver);
  task_ = {resolver.task_type().value_or(is_coordinator ? "chief" : "worker"),
           resolver.task_id().value_or(0)};
  if (mode_ == CoordinatorMode::independent_worker) {
    set_coordinated_task(cluster);
  } else if (cluster) {
    set_cluster_task(cluster, keys);
  } else {
    set_local_task(keys);
  }
}

void RunConfig::set_evaluator() {
  cluster_ = ClusterSpec();
  master_.clear();
  num_ps_ = num_workers_ = 0;
  global_id_ = std::nullopt;
  is_chief_ = false;
}

void RunConfig::set_coordinated_task(const ClusterSpec& cluster) {
  if (task_.job == kEvaluator) return set_evaluator();
  cluster_ = cluster;
  const bool has_chief = cluster.tasks().count("chief") > 0;
  const bool is_alone = task_.job == "chief" && !has_chief;  // a coordinator without an address
  if (!is_alone) check_in_cluster(cluster, task_);
  is_chief_ = task_.job == "chief" || (!has_chief && task_ == TaskId{"worker", 0});
  if (!is_alone) master_ = "grpc://" + cluster.task_address(task_.job, task_.index);
  num_ps_ = tasks_of_job(cluster, "ps");
  num_workers_ = tasks_of_job(cluster, "worker") + tasks_of_job(cluster, "chief");
  global_id_ = is_alone ? 0 : global_id_of(cluster, task_, has_chief ? "chief" : "worker");
}

// As tf's RunConfig without a cluster.
void RunConfig::set_local_task(const Keys& keys) {
  COHORT_CHECK(task_.job == "worker", ErrorCode::invalid_argument,
               "[estimator.run_config] expected TF_CONFIG key task.type to be worker, since there "
               "is no cluster, got '",
               task_.job, "'; add the cluster, or leave the task out");
  COHORT_CHECK(task_.index == 0, ErrorCode::invalid_argument,
               "[estimator.run_config] expected TF_CONFIG key task.index to be 0, since there is "
               "no cluster, got ",
               task_.index, "; add the cluster, or leave the task out");
  master_ = keys.session_master.value_or("");
  evaluation_master_ = keys.eval_session_master.value_or("");
}

// As tf's RunConfig with a cluster that no strategy coordinates.
void RunConfig::set_cluster_task(const ClusterSpec& cluster, const Keys& keys) {
  const std::string chief = cluster.tasks().count("master") > 0 ? "master" : "chief";
  check_one_chief(cluster, chief);
  COHORT_CHECK(task_.index >= 0, ErrorCode::invalid_argument,
               "[estimator.run_config] expected TF_CONFIG key task.index >= 0, got ", task_.index);
  if (task_.job == kEvaluator) {
    COHORT_CHECK(chief == "chief", ErrorCode::invalid_argument,
                 "[estimator.run_config] expected no evaluator, since the cluster has a master, "
                 "which evaluates itself, got task.type 'evaluator'; rename the master to chief");
    evaluation_master_ = keys.eval_session_master.value_or("");
    return set_evaluator();
  }
  COHORT_CHECK(!keys.eval_session_master, ErrorCode::invalid_argument,
               "[estimator.run_config] expected TF_CONFIG key eval_session_master only in an "
               "evaluator, got it in ",
               task_, "; leave it out");
  check_in_cluster(cluster, task_);
  cluster_ = cluster;
  is_chief_ = task_.job == chief;
  const bool is_alone = cluster.jobs().size() == 1 && cluster.num_tasks(chief) == 1;
  master_ = keys.session_master ? *keys.session_master
            : is_alone          ? ""
                                : "grpc://" + cluster.task_address(task_.job, task_.index);
  num_ps_ = tasks_of_job(cluster, "ps");
  num_workers_ = tasks_of_job(cluster, "worker") + tasks_of_job(cluster, chief);
  global_id_ = global_id_of(cluster, task_, chief);
}

void RunConfig::set_model_dir(const Keys& keys) {
  COHORT_CHECK(!keys.model_dir || !keys.model_dir->empty(), ErrorCode::invalid_argument,
               "[estimator.run_config] expected the path of a folder for TF_CONFIG key model_dir, "
               "got an empty one; leave the key out");
  const bool agrees =
      !keys.model_dir || options_.model_dir.empty() || *keys.model_dir == options_.model_dir;
  COHORT_CHECK(agrees, ErrorCode::invalid_argument,
               "[estimator.run_config] expected one model_dir, got '", options_.model_dir,
               "' as option and '", *keys.model_dir, "' in TF_CONFIG; leave one out");
  if (options_.model_dir.empty()) options_.model_dir = keys.model_dir.value_or("");
  if (!options_.model_dir.empty()) return;
  COHORT_CHECK(!cluster_ && task_.job != kEvaluator, ErrorCode::invalid_argument,
               "[estimator.run_config] expected a model_dir, which the tasks of a cluster share, "
               "got none; set it to a folder that all of them reach");
  options_.model_dir = temporary_folder();
}

std::vector<std::string> RunConfig::device_filters() const {
  if (!cluster_) return {};
  if (task_.job == "master" || task_.job == "chief") return {"/job:ps", "/job:" + task_.job};
  if (task_.job == "worker") return {"/job:ps", "/job:worker/task:" + std::to_string(task_.index)};
  if (task_.job == "ps") return {"/job:ps", "/job:worker", "/job:chief", "/job:master"};
  return {};
}

Clock& RunConfig::clock() const {
  return options_.clock == nullptr ? Clock::system() : *options_.clock;
}

std::optional<Duration> RunConfig::save_checkpoints_interval() const {
  if (options_.save_checkpoints_steps) return std::nullopt;
  const Duration interval = options_.save_checkpoints_interval.value_or(std::chrono::seconds(600));
  return interval == Duration::zero() ? std::nullopt : std::optional(interval);
}

bool RunConfig::saves_checkpoints() const {
  return options_.save_checkpoints_steps.value_or(0) > 0 || save_checkpoints_interval();
}

Duration RunConfig::max_worker_delay() const {
  return options_.max_worker_delay.value_or(std::chrono::seconds(60));
}

}  // namespace cohort::estimator
