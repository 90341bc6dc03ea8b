// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/folder_writer.h"

#include <ATen/core/TensorBody.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cohort/checkpoint_files/manifest_shares.h"
#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/system_error.h"

namespace cohort::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const std::string& path, int code) {
  internal::throw_error(code_of_write_errno(code), "[checkpoint.write] expected to write folder '",
                        path, "', got: ", text_of_errno(code));
}

std::string made_partial(const std::string& path) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) fail_to_write(path, error.value());
  const auto status = fs::status(path, error);
  COHORT_CHECK(!fs::exists(status) || fs::is_directory(status), ErrorCode::invalid_argument,
               "[checkpoint.write] expected a folder, or none yet, got '", path,
               "', which is a file; give another name, or remove it");
  const std::string partial =
      fmt::format("{}{}{:016x}", path, std::string(kPartialSuffix), draw_number());
  error.clear();
  if (!fs::create_directory(partial, error)) fail_to_write(path, error ? error.value() : EEXIST);
  return partial;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  COHORT_CHECK(!path.empty(), ErrorCode::invalid_argument,
               "[checkpoint.write] expected the path of a folder, got an empty one");
  return path;
}

// Gives the folder its name. An old folder of that name is exchanged for it at one moment where the
// file system can do that, and removed.
void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_to_write(to, errno);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail_to_write(to, errno);
    const std::string old = from + ".old";
    if (::rename(to.c_str(), old.c_str()) != 0 || ::rename(from.c_str(), to.c_str()) != 0)
      fail_to_write(to, errno);
    std::error_code ignored;
    fs::remove_all(old, ignored);
    return;
  }
  std::error_code ignored;
  fs::remove_all(from, ignored);
}

}  // namespace

FolderWriter::FolderWriter(std::string path, std::uint64_t header_room)
    : path_(without_slash(std::move(path))),
      partial_path_(made_partial(path_)),
      files_(partial_path_, "", header_room) {}

FolderWriter::~FolderWriter() {
  if (is_committed_) return;
  files_.drop();
  std::error_code ignored;
  fs::remove_all(partial_path_, ignored);
}

void FolderWriter::write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                         const at::Tensor& rows) {
  files_.write(name, spec, first_row, rows);
}

void FolderWriter::append(const std::string& name, const at::Tensor& rows) {
  files_.append(name, rows);
}

std::vector<VariableEntry> FolderWriter::add_share(const std::string& text,
                                                   const std::string& writer) {
  Manifest share = parse_share(text, "the share of " + writer);
  for (const auto& [name, tensor] : share.tensors) {
    std::error_code error;
    COHORT_CHECK(fs::is_regular_file(partial_path_ + "/" + tensor.file, error),
                 ErrorCode::failed_precondition, "[checkpoint.write] expected file '", tensor.file,
                 "' of ", writer, " in '", partial_path_,
                 "', got none: it writes into another folder; give all writers one file system "
                 "with the folder at the same path, or save with CheckpointWriters::first");
  }
  add_tensors_of_share(shares_, share, writer);
  return std::move(share.variables);
}

void FolderWriter::commit(Manifest manifest, const std::function<void()>& check) {
  files_.finish(manifest.tensors);
  order_rows(shares_);
  manifest.tensors.merge(shares_.tensors);
  COHORT_ASSERT(shares_.tensors.empty());  // nobody writes what another one writes
  // Also waits until the disk has the names of all files of the folder.
  write_atomically(partial_path_ + "/manifest.json", encode(manifest), "checkpoint.write");
  if (check) check();
  rename_folder(partial_path_, path_);
  is_committed_ = true;
  sync_folder(fs::path(path_).parent_path().string());
}

}  // namespace cohort::checkpoint
