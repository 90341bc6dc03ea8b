// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/check/task_facts.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "cohort/core/random.h"
#include "cohort/net/host_proof.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/process_room.h"

namespace cohort::cli {
namespace {

std::uint64_t soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kNoLimit;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

std::uint64_t free_shared_bytes() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

TaskLimits own_limits() {
  return {.descriptors = rpc::free_descriptors(),
          .threads = soft_limit(RLIMIT_NPROC),
          .locked_bytes = soft_limit(RLIMIT_MEMLOCK),
          .shared_bytes = free_shared_bytes(),
          .address_space_bytes = soft_limit(RLIMIT_AS),
          .file_bytes = soft_limit(RLIMIT_FSIZE)};
}

DataFolder looked_at(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code problem;
  DataFolder folder{.path = path, .exists = fs::is_directory(path, problem)};
  if (!folder.exists) return folder;
  folder.can_be_read = ::access(path.c_str(), R_OK | X_OK) == 0;
  folder.is_empty = folder.can_be_read && fs::is_empty(path, problem);
  return folder;
}

nlohmann::json json_of_limit(std::uint64_t limit) {
  return limit == kNoLimit ? nlohmann::json() : nlohmann::json(limit);
}

std::uint64_t limit_in(const nlohmann::json& limits, const char* name) {
  const auto found = limits.find(name);
  if (found == limits.end() || !found->is_number_unsigned()) return kNoLimit;
  return found->get<std::uint64_t>();
}

}  // namespace

std::string text_of_facts(const TaskFacts& facts) {
  nlohmann::json data = nlohmann::json::array();
  for (const DataFolder& each : facts.data)
    data.push_back({{"path", each.path},
                    {"exists", each.exists},
                    {"can_be_read", each.can_be_read},
                    {"is_empty", each.is_empty}});
  const TaskLimits& limits = facts.limits;
  const nlohmann::json object = {
      {"task", facts.task},
      {"process", facts.process},
      {"host", facts.host},
      {"cluster", facts.cluster},
      {"cohort", facts.cohort_version},
      {"protocol", facts.protocol_version},
      {"torch", facts.torch_version},
      {"clock_seconds", facts.clock_seconds},
      {"limits",
       {{"descriptors", json_of_limit(limits.descriptors)},
        {"threads", json_of_limit(limits.threads)},
        {"locked_bytes", json_of_limit(limits.locked_bytes)},
        {"shared_bytes", json_of_limit(limits.shared_bytes)},
        {"address_space_bytes", json_of_limit(limits.address_space_bytes)},
        {"file_bytes", json_of_limit(limits.file_bytes)}}},
      {"data", std::move(data)}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<TaskFacts> facts_of_text(std::string_view text) {
  try {
    const nlohmann::json object = nlohmann::json::parse(text);
    TaskFacts facts{.task = object.at("task"),
                    .process = object.at("process"),
                    .host = object.at("host"),
                    .cluster = object.at("cluster"),
                    .cohort_version = object.at("cohort"),
                    .protocol_version = object.at("protocol"),
                    .torch_version = object.at("torch"),
                    .clock_seconds = object.at("clock_seconds")};
    const nlohmann::json& limits = object.at("limits");
    facts.limits = {.descriptors = limit_in(limits, "descriptors"),
                    .threads = limit_in(limits, "threads"),
                    .locked_bytes = limit_in(limits, "locked_bytes"),
                    .shared_bytes = limit_in(limits, "shared_bytes"),
                    .address_space_bytes = limit_in(limits, "address_space_bytes"),
                    .file_bytes = limit_in(limits, "file_bytes")};
    for (const nlohmann::json& each : object.at("data"))
      facts.data.push_back({.path = each.at("path"),
                            .exists = each.at("exists"),
                            .can_be_read = each.at("can_be_read"),
                            .is_empty = each.at("is_empty")});
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

TaskFacts own_facts(std::string task, std::string cluster, const std::vector<std::string>& data) {
  TaskFacts facts{.task = std::move(task),
                  .process = std::to_string(draw_number()),
                  .host = net::boot_id() + net::namespace_id("net"),
                  .cluster = std::move(cluster),
                  .cohort_version = COHORT_VERSION,
                  .protocol_version = rpc::kProtocolVersion,
                  .torch_version = TORCH_VERSION,
                  .clock_seconds = clock_seconds_now(),
                  .limits = own_limits()};
  for (const std::string& path : data) facts.data.push_back(looked_at(path));
  return facts;
}

double clock_seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace cohort::cli
