// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/files/detail/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "cohort/core/detail/system_error.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

// No other process and no other file of this one has it.
std::string partial_name_of(const std::string& path) {
  static std::atomic<std::uint64_t> number = 0;
  return path + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
}

ErrorCode code_of_write_error(int code) {
  return code == EPERM ? ErrorCode::permission_denied : code_of_file_errno(code);
}

// The file that the path names, after links. Throws unless it can be replaced.
std::string target_of(const std::string& path, std::string_view call) {
  std::error_code error;
  const bool is_link = std::filesystem::is_symlink(path, error);
  const std::string target =
      is_link ? std::filesystem::weakly_canonical(path, error).string() : path;
  // A link in a circle has no target.
  if (error) return path;
  const auto status = std::filesystem::status(target, error);
  COHORT_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status) ||
                   std::filesystem::is_directory(status),
               ErrorCode::invalid_argument, "[", call, "] expected to write a file, got '", path,
               "', which is a device, a pipe or a socket");
  return target;
}

// After that the new name survives a loss of power. Not every file system can do it.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor file(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.is_open()) ::fsync(file.get());
}

// A process that would give them this name later finds that they are gone.
void remove_partial_files(const std::string& path, const std::string& except) {
  const std::filesystem::path target(path);
  const std::string begin = target.filename().string() + ".partial-";
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with(begin) && name != std::filesystem::path(except).filename().string())
      ::unlink(entries->path().c_str());
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string call)
    : path_(target_of(path, call)),
      call_(std::move(call)),
      partial_path_(partial_name_of(path_)),
      file_(::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) ::unlink(partial_path_.c_str());
}

void AtomicFile::fail(int code) const {
  internal::throw_error(code_of_write_error(code), "[", call_, "] expected to write file '", path_,
                        "', got: ", text_of_errno(code));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit(const std::function<void()>& check) {
  if (::fsync(file_.get()) != 0) fail(errno);
  if (check) {
    check();
    remove_partial_files(path_, partial_path_);
  }
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    if (code == ENOENT && check) check();  // it may throw now, which tells more
    fail(code);
  }
  file_ = FileDescriptor();
  sync_folder_of(path_);
}

}  // namespace cohort
