// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "cohort/core/random.h"
#include "cohort/core/system_error.h"

namespace cohort {
namespace {

constexpr std::string_view kPartial = ".partial-";
constexpr std::size_t kDigits = 16;

std::string hex(std::uint64_t number) { return fmt::format("{:0{}x}", number, kDigits); }

// FILE.partial-ORDER-RANDOM, of 16 digits each. No other process and no other file of this one has
// it.
std::string partial_name_of(const std::string& path, std::uint64_t order) {
  return path + std::string(kPartial) + hex(order) + "-" + hex(draw_number());
}

// The order of the file `begin`ORDER-RANDOM; nullopt for other names.
std::optional<std::uint64_t> order_of(std::string_view name, std::string_view begin) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!name.starts_with(begin) || name.size() != begin.size() + 2 * kDigits + 1) return {};
  name.remove_prefix(begin.size());
  const std::string_view order = name.substr(0, kDigits);
  const std::string_view random = name.substr(kDigits + 1);
  if (name[kDigits] != '-' || !std::all_of(order.begin(), order.end(), is_digit) ||
      !std::all_of(random.begin(), random.end(), is_digit))
    return {};
  return std::stoull(std::string(order), nullptr, 16);
}

// If a process still writes one of them, it finds that the file is gone.
void remove_earlier_partials(const std::string& path, std::uint64_t order) {
  const std::filesystem::path target(path);
  const std::string begin = target.filename().string() + std::string(kPartial);
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::uint64_t found = order_of(entries->path().filename().string(), begin).value_or(0);
    if (found > 0 && found < order) ::unlink(entries->path().c_str());
  }
}

// The file that the path names, after links, which may not exist yet. Throws unless it can be
// replaced.
std::string target_of(const std::string& path, std::string_view call) {
  constexpr int kLinksMax = 40;
  std::error_code error;
  std::filesystem::path target = path;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    // A link in a circle has no target.
    if (error || links == kLinksMax) return path;
    target = target.parent_path() / next;
  }
  const auto status = std::filesystem::status(target, error);
  COHORT_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status) ||
                   std::filesystem::is_directory(status),
               ErrorCode::invalid_argument, "[", call, "] expected to write a file, got '", path,
               "', which is a device, a pipe or a socket");
  return target.string();
}

}  // namespace

ErrorCode code_of_write_errno(int number) {
  return number == EPERM ? ErrorCode::permission_denied : code_of_file_errno(number);
}

void sync_folder(const std::string& folder) {
  const FileDescriptor file(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.is_open()) ::fsync(file.get());
}

AtomicFile::AtomicFile(std::string path, std::string call, std::uint64_t order)
    : path_(target_of(path, call)),
      call_(std::move(call)),
      order_(order),
      partial_path_(partial_name_of(path_, order)),
      file_(::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) ::unlink(partial_path_.c_str());
}

void AtomicFile::fail(int code) const {
  internal::throw_error(code_of_write_errno(code), "[", call_, "] expected to write file '", path_,
                        "', got: ", text_of_errno(code));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (const int code = behind_.write(file_.get(), written_, bytes)) fail(code);
  written_ += bytes.size();
}

void AtomicFile::commit(const std::function<void()>& check) {
  if (::fsync(file_.get()) != 0) fail(errno);
  if (check) check();
  if (order_ > 1) remove_earlier_partials(path_, order_);
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    if (code == ENOENT && check) check();  // it may throw now, which tells more
    fail(code);
  }
  file_ = FileDescriptor();
  sync_folder(std::filesystem::path(path_).parent_path().string());
}

void write_atomically(std::string path, std::string_view text, std::string call) {
  AtomicFile file(std::move(path), std::move(call));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace cohort
