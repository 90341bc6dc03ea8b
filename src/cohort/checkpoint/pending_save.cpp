// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/pending_save.h"

#include <chrono>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error_bytes.h"
#include "cohort/core/log.h"

namespace cohort::checkpoint {

// A worker says this of the last save.
struct PendingSave::Told {
  enum class Kind : std::uint8_t { nothing, is_asking, is_writing, has_ended };
  Kind kind = Kind::nothing;
  std::string path = {};
  std::optional<Error> error = {};

  Bytes bytes() const {
    ByteWriter out;
    out.u8(static_cast<std::uint8_t>(kind));
    out.text(path);
    write_optional_error(out, error);
    return out.take();
  }
  static Told of(const Bytes& bytes) {
    if (bytes.empty()) return {};
    ByteReader in(bytes, "the end of a save");
    Told told{.kind = static_cast<Kind>(in.u8())};
    told.path = in.text();
    told.error = read_optional_error(in);
    return told;
  }
};

Bytes PendingSave::tell(Duration timeout) const {
  Told told{.kind = Told::Kind::is_asking, .path = path_};
  if (writing_ != nullptr) {
    const bool is_done = writing_->wait(Deadline::after(timeout));
    told.kind = is_done ? Told::Kind::has_ended : Told::Kind::is_writing;
    if (is_done) told.error = writing_->error();
  }
  return told.bytes();
}

void PendingSave::note_end(std::optional<Error> error) {
  is_known_ = true;
  error_ = std::move(error);
  writing_.reset();
}

void PendingSave::settle(const internal::StrategyVariables& parts, PendingSave* last,
                         Duration timeout) {
  const bool is_open = last != nullptr && !last->is_known_;
  const std::vector<Bytes> all =
      parts.exchange("checkpoint", [&] { return is_open ? last->tell(timeout) : Bytes(); });
  Told end;  // what most is known of
  for (const Bytes& bytes : all) {
    Told told = Told::of(bytes);
    if (told.kind > end.kind) end = std::move(told);
  }
  if (end.kind == Told::Kind::nothing) return;
  COHORT_CHECK(end.kind != Told::Kind::is_writing, ErrorCode::deadline_exceeded,
               "[checkpoint.save] expected the writing of checkpoint '", end.path,
               "' to end within ", std::chrono::duration<double>(timeout).count(),
               " s, got one that goes on; make the call again, or give it a longer timeout");
  if (end.kind == Told::Kind::is_asking) {
    end.error =
        Error(ErrorCode::aborted, "[checkpoint.save] expected the worker that wrote '" + end.path +
                                      "' to say how it has ended, got none: that worker "
                                      "was lost, and perhaps the checkpoint with it");
  }
  if (is_open) last->note_end(end.error);
  if (end.error) throw Error(*end.error).during("writing checkpoint '" + end.path + "'");
}

void PendingSave::wait(Duration timeout) {
  if (!is_known_) {
    COHORT_CHECK(parts_ != nullptr, ErrorCode::failed_precondition,
                 "[checkpoint.wait] expected a manager that exists still, which knows how the save "
                 "of '",
                 path_, "' by another worker has ended; wait before the manager ends");
    return settle(*parts_, this, timeout);
  }
  if (error_) throw Error(*error_).during("writing checkpoint '" + path_ + "'");
}

void PendingSave::end() noexcept {
  parts_ = nullptr;
  if (is_known_ || writing_ == nullptr) return;
  try {
    writing_->wait(Deadline());
    note_end(writing_->error());
    if (error_) log_error("[checkpoint.save] '", path_, "' was not written: ", error_->what());
  } catch (...) {  // no memory for an error
  }
}

}  // namespace cohort::checkpoint
