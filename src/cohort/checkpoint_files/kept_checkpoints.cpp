// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/kept_checkpoints.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/system_error.h"

namespace cohort::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kLatest = "latest";

[[noreturn]] void fail(const std::string& folder, int code) {
  internal::throw_error(code_of_file_errno(code), "[checkpoint.manager] expected to use folder '",
                        folder, "', got: ", text_of_errno(code));
}

// nullopt for other names.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

std::string made_folder(std::string folder) {
  COHORT_CHECK(!folder.empty(), ErrorCode::invalid_argument,
               "[checkpoint.manager] expected the path of a folder, got an empty one");
  std::error_code error;
  const auto status = fs::status(folder, error);
  COHORT_CHECK(!fs::exists(status) || fs::is_directory(status), ErrorCode::invalid_argument,
               "[checkpoint.manager] expected a folder, or none yet, got '", folder,
               "', which is a file");
  error.clear();
  fs::create_directories(folder, error);
  if (error) fail(folder, error.value());
  return folder;
}

// The system unlocks it when the process ends, however it does.
FileDescriptor locked(const std::string& folder) {
  FileDescriptor file(::open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open()) fail(folder, errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  COHORT_CHECK(errno != EWOULDBLOCK, ErrorCode::failed_precondition,
               "[checkpoint.manager] expected a folder that no other manager uses, got '", folder,
               "'; give each its own folder, or end the other one");
  log_warn(
      "[checkpoint.manager] folder '", folder,
      "' cannot be locked, so that a second manager would not be noticed: ", text_of_errno(errno));
  return file;
}

fs::file_time_type time_of(const std::string& path) {
  std::error_code error;
  return fs::last_write_time(path + "/manifest.json", error);
}

}  // namespace

std::string path_of_step(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/{}{}", folder, kPrefix, step);
}

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (const auto step = step_of(entries->path().filename().string())) steps.push_back(*step);
  }
  if (error) fail(folder, error.value());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<std::int64_t> latest_in(const std::string& folder) {
  std::ifstream file(folder + "/" + std::string(kLatest));
  std::string name;
  std::getline(file, name);
  const std::vector<std::int64_t> all = steps_in(folder);
  const std::optional<std::int64_t> named = step_of(name);
  if (named && std::binary_search(all.begin(), all.end(), *named)) return named;
  return all.empty() ? std::nullopt : std::optional(all.back());
}

KeptCheckpoints::KeptCheckpoints(std::string folder)
    : folder_(made_folder(std::move(folder))), lock_(locked(folder_)) {
  std::error_code error;
  fs::directory_iterator entries(folder_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const bool is_own = name.starts_with(kPrefix) || name.starts_with(kLatest);
    if (!is_own || name.find(kPartialSuffix) == std::string::npos) continue;
    std::error_code ignored;
    fs::remove_all(entries->path(), ignored);
  }
}

void KeptCheckpoints::set_latest(std::int64_t step) const {
  write_atomically(folder_ + "/" + std::string(kLatest),
                   std::string(kPrefix) + std::to_string(step) + "\n", "checkpoint.save");
}

void KeptCheckpoints::remove_old(std::int64_t max_to_keep, Duration keep_every) const {
  if (max_to_keep == 0) return;
  const std::vector<std::int64_t> all = steps();
  const auto old = std::max<std::ptrdiff_t>(0, std::ssize(all) - max_to_keep);
  const std::optional<std::int64_t> newest = latest();
  std::optional<fs::file_time_type> kept;
  for (std::ptrdiff_t i = 0; i < old; ++i) {
    const std::int64_t step = all[static_cast<std::size_t>(i)];
    const std::string path = path_of(step);
    const fs::file_time_type time = time_of(path);
    const bool stays = keep_every > Duration::zero() && (!kept || time - *kept >= keep_every);
    if (stays) kept = time;
    if (stays || step == newest) continue;
    // Under another name first, so that no half of it looks like a checkpoint.
    const std::string removed = path + std::string(kPartialSuffix) + "removed";
    std::error_code error;
    fs::rename(path, removed, error);
    if (!error) fs::remove_all(removed, error);
    if (error) log_warn("[checkpoint.save] '", path, "' was not removed: ", error.message());
  }
}

}  // namespace cohort::checkpoint
