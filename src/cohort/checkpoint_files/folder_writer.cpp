// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/folder_writer.h"

#include <ATen/core/TensorBody.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/system_error.h"

namespace cohort::checkpoint {
namespace {

namespace fs = std::filesystem;

// A file with one tensor needs so much, as its name may be long.
constexpr std::uint64_t kOneHeaderRoom = 4096;

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
      header_room_(header_room),
      partial_path_(made_partial(path_)) {}

FolderWriter::~FolderWriter() {
  if (is_committed_) return;
  files_.clear();
  std::error_code ignored;
  fs::remove_all(partial_path_, ignored);
}

void FolderWriter::write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                         const at::Tensor& rows) {
  auto place = places_.find(name);
  if (place == places_.end()) {
    const std::string file = dtype_name(spec.dtype) + ".safetensors";
    std::unique_ptr<TensorFile>& own = files_[file];
    if (own == nullptr)
      own = std::make_unique<TensorFile>(partial_path_ + "/" + file, header_room_);
    place = places_.emplace(name, Place{own.get(), own->add(name, spec)}).first;
  }
  place->second.file->write(place->second.tensor, first_row, rows);
}

void FolderWriter::append(const std::string& name, const at::Tensor& rows) {
  auto place = places_.find(name);
  if (place == places_.end()) {
    const std::string file = "rows-" + std::to_string(files_.size()) + ".safetensors";
    auto& own = files_[file];
    own = std::make_unique<TensorFile>(partial_path_ + "/" + file, kOneHeaderRoom);
    place =
        places_.emplace(name, Place{own.get(), own->add_growing(name, TensorSpec::of(rows))}).first;
  }
  if (rows.size(0) > 0) place->second.file->append(rows);
}

void FolderWriter::commit(Manifest manifest, const std::function<void()>& check) {
  for (auto& [name, file] : files_) {
    file->finish();
    for (TensorFile::Written& written : file->take_written())
      manifest.tensors.emplace(std::move(written.name), TensorEntry{std::move(written.spec), name,
                                                                    std::move(written.parts)});
  }
  const std::string text = encode(manifest);
  AtomicFile file(partial_path_ + "/manifest.json", "checkpoint.write");
  file.write(std::as_bytes(std::span(text)));
  file.commit();  // also waits until the disk has the names of all files of the folder
  if (check) check();
  rename_folder(partial_path_, path_);
  is_committed_ = true;
  sync_folder(fs::path(path_).parent_path().string());
}

}  // namespace cohort::checkpoint
