// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kShape =
    "write {\"worker\": [\"host:port\", …], \"ps\": [\"host:port\", …]}";

// Limits job_tasks(), which returns an entry for each index up to the largest.
constexpr std::int64_t kIndexMax = 999'999;

bool is_dense(const ClusterSpec::Tasks& tasks) {
  return !tasks.empty() && tasks.rbegin()->first == static_cast<std::int64_t>(tasks.size()) - 1;
}

ClusterSpec::Tasks dense(const std::vector<std::string>& addresses) {
  ClusterSpec::Tasks tasks;
  for (const std::string& address : addresses) {
    tasks.emplace(static_cast<std::int64_t>(tasks.size()), address);
  }
  return tasks;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

// Reads one cluster; each error names the key below `where`.
class SpecReader {
 public:
  explicit SpecReader(std::string_view where) : where_(where) {}

  std::map<std::string, ClusterSpec::Tasks> run(const Json& cluster) const {
    if (!cluster.is_object()) {
      fail_type("", "an object that maps each job to its addresses", cluster);
    }
    std::map<std::string, ClusterSpec::Tasks> jobs;
    for (const auto& [job, tasks] : cluster.items()) jobs[job] = read_job(job, tasks);
    return jobs;
  }

 private:
  ClusterSpec::Tasks read_job(const std::string& job, const Json& tasks) const {
    ClusterSpec::Tasks read;
    if (tasks.is_array()) {
      for (const Json& address : tasks) {
        const auto index = static_cast<std::int64_t>(read.size());
        read[index] = read_address(job, std::to_string(index), address);
      }
    } else if (tasks.is_object()) {
      for (const auto& [key, address] : tasks.items()) {
        const auto [at, is_new] =
            read.emplace(read_index(job, key), read_address(job, key, address));
        COHORT_CHECK(is_new, ErrorCode::invalid_argument,
                     "[cluster.spec] expected each index once, got ", at->first, " twice in ",
                     place(job), "; give every task an index of its own");
      }
    } else {
      fail_type(job, "a list of addresses or a map from index to address", tasks);
    }
    return read;
  }

  std::int64_t read_index(const std::string& job, const std::string& key) const {
    const std::optional<std::int64_t> index = internal::integer_of_text(key);
    COHORT_CHECK(index && *index >= 0, ErrorCode::invalid_argument,
                 "[cluster.spec] expected an index of 0 or more as key, got \"", key, "\" in ",
                 place(job), "; write {\"0\": \"host:port\", …} or a list");
    return *index;
  }

  std::string read_address(const std::string& job, const std::string& key,
                           const Json& address) const {
    if (!address.is_string()) fail_type(job + "[" + key + "]", "an address as text", address);
    return address.get<std::string>();
  }

  std::string place(const std::string& key) const {
    return key.empty() ? where_ : where_ + "." + key;
  }

  [[noreturn]] void fail_type(const std::string& key, std::string_view expected,
                              const Json& got) const {
    std::ostringstream text;
    text << "[cluster.spec] expected " << expected << " for " << place(key) << ", got "
         << internal::quote(got.dump()) << "; " << kShape;
    throw Error(ErrorCode::invalid_argument, text.str(), ErrorCause::wrong_type);
  }

  std::string where_;
};

}  // namespace

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  for (const auto& [job, addresses] : jobs) jobs_.emplace(job, dense(addresses));
}

ClusterSpec::ClusterSpec(
    std::initializer_list<std::pair<const std::string, std::vector<std::string>>> jobs) {
  for (const auto& [job, addresses] : jobs) {
    const bool is_new = jobs_.emplace(job, dense(addresses)).second;
    COHORT_CHECK(is_new, ErrorCode::invalid_argument,
                 "[cluster.spec] expected each job once, got \"", job,
                 "\" twice; put all its addresses in one list");
  }
}

ClusterSpec ClusterSpec::from_tasks(std::map<std::string, Tasks> jobs) {
  for (const auto& [job, tasks] : jobs) {
    COHORT_CHECK(tasks.empty() || tasks.begin()->first >= 0, ErrorCode::invalid_argument,
                 "[cluster.spec] expected an index of 0 or more, got ", tasks.begin()->first,
                 " in job \"", job, "\"; number the tasks from 0");
    COHORT_CHECK(tasks.empty() || tasks.rbegin()->first <= kIndexMax, ErrorCode::invalid_argument,
                 "[cluster.spec] expected an index of at most ", kIndexMax, ", got ",
                 tasks.rbegin()->first, " in job \"", job, "\"; number the tasks from 0");
  }
  ClusterSpec spec;
  spec.jobs_ = std::move(jobs);
  return spec;
}

ClusterSpec ClusterSpec::from_json(std::string_view text, std::string_view where) {
  Json cluster;
  try {
    cluster = Json::parse(text);
  } catch (const Json::exception& error) {
    internal::throw_error(ErrorCode::invalid_argument, "[cluster.spec] expected JSON for ", where,
                          ", got ", internal::quote(text), " (", error.what(), "); ", kShape);
  }
  return from_tasks(SpecReader(where).run(cluster));
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

bool ClusterSpec::has_task(const std::string& job, std::int64_t index) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.contains(index);
}

const ClusterSpec::Tasks& ClusterSpec::tasks_of(const std::string& job) const {
  const auto found = jobs_.find(job);
  COHORT_CHECK(found != jobs_.end(), ErrorCode::invalid_argument,
               "[cluster.spec] expected one of the jobs ", joined(jobs()), ", got \"", job,
               "\"; add the job to the cluster or ask for another", did_you_mean(job, jobs()));
  return found->second;
}

std::int64_t ClusterSpec::num_tasks(const std::string& job) const {
  return static_cast<std::int64_t>(tasks_of(job).size());
}

std::vector<std::int64_t> ClusterSpec::task_indices(const std::string& job) const {
  std::vector<std::int64_t> indices;
  for (const auto& [index, address] : tasks_of(job)) indices.push_back(index);
  return indices;
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  std::vector<std::optional<std::string>> addresses;
  for (const auto& [index, address] : tasks_of(job)) {
    addresses.resize(static_cast<std::size_t>(index));
    addresses.emplace_back(address);
  }
  return addresses;
}

const std::string& ClusterSpec::task_address(const std::string& job, std::int64_t index) const {
  const Tasks& tasks = tasks_of(job);
  const auto found = tasks.find(index);
  if (found != tasks.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [i, address] : tasks) known.push_back(std::to_string(i));
  internal::throw_error(ErrorCode::invalid_argument, "[cluster.spec] expected one of the indices ",
                        joined(known), " of job \"", job, "\", got ", index,
                        "; add the task to the cluster or ask for another");
}

std::string ClusterSpec::to_json() const {
  Json cluster = Json::object();
  for (const auto& [job, tasks] : jobs_) {
    Json& entry = cluster[job] = is_dense(tasks) ? Json::array() : Json::object();
    for (const auto& [index, address] : tasks) {
      if (entry.is_array()) {
        entry.push_back(address);
      } else {
        entry[std::to_string(index)] = address;
      }
    }
  }
  // Addresses need not be UTF-8; a name that is not must not make printing throw.
  return cluster.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cohort
