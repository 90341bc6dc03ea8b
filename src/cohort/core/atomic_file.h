// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
//
//   AtomicFile file("values.safetensors", "variable.save_values");
//   file.write(header);
//   file.write(data);
//   file.commit();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/write_behind.h"

namespace cohort {

// The code of the error of a call that writes a file.
COHORT_API ErrorCode code_of_write_errno(int number);
// Names that files of the folder have got survive a loss of power after that. Not every file system
// can do it.
COHORT_API void sync_folder(const std::string& folder);

// Writes under another name in the same folder, which it removes if it is not committed. So a file
// that has the name already stays as it is until then. Thread-compatible.
class COHORT_API AtomicFile {
 public:
  // A link is followed, so that its target gets the bytes. `call` is for messages. `order` is for
  // processes that write the same file in turn: see commit(). This and the other calls throw
  // not_found, permission_denied, resource_exhausted (a full disk) or failed_precondition, naming
  // the file; this one invalid_argument for what exists but is no file, such as a device.
  AtomicFile(std::string path, std::string call, std::uint64_t order = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Waits until the disk has the bytes, then gives the file its name. Call it once, at the end. If
  // `check`, which is called between the two, throws, an old file of this name stays. A process may
  // be stopped after its check and go on when another one has taken its turn, with a larger order:
  // then that one has removed what this one has written, and commit() calls `check` again and
  // throws.
  void commit(const std::function<void()>& check = {});

 private:
  [[noreturn]] void fail(int code) const;

  const std::string path_;
  const std::string call_;
  const std::uint64_t order_;
  const std::string partial_path_;
  FileDescriptor file_;
  WriteBehind behind_;
  std::uint64_t written_ = 0;
};

// The same in one call, for a file of few bytes.
COHORT_API void write_atomically(std::string path, std::string_view text, std::string call);

}  // namespace cohort
