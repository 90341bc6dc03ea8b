// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/transfer.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace cohort::collective::tcp {
Transfer::Transfer(Call& call, std::uint64_t number, Scratch& scratch, Bytes message,
                   bool has_values)
    : call_(call),
      number_(number),
      fingerprint_(call.fingerprint()),
      scratch_(scratch),
      has_values_(has_values),
      is_inline_(!has_values || fits_offer(call, static_cast<std::int64_t>(message.size()))),
      peers_(static_cast<std::size_t>(call.size)) {
  if (call_.kind == CallKind::exchange) {
    messages_.resize(peers_.size());
    values_ready_ = static_cast<std::int64_t>(message.size());
    messages_[static_cast<std::size_t>(call_.rank)] = std::move(message);
  }
  if (call_.refusal || is_inline_) return;
  if (call_.is_reduction()) {
    share_ = share_of(call_, call_.rank);
    segment_bytes_ = segment_bytes(call_);
  }
  if (call_.kind == CallKind::broadcast && call_.rank == call_.root)
    values_ready_ = call_.payload_bytes;
  if (call_.kind == CallKind::all_gather) values_ready_ = call_.parts.front().bytes;
}

bool Transfer::next_frame(int to, Frame& frame) {
  Peer& receiver = peer(to);
  frame.header.call = number_;
  frame.header.fingerprint = fingerprint_;
  if (!receiver.is_offer_sent) {
    write_offer(to, frame);
    return true;
  }
  if (is_decided_ && !is_agreed_) {
    if (receiver.is_spec_sent) return false;
    write_call(to, frame);
    return true;
  }
  return write_values(to, frame) || write_contribution(to, frame);
}

void Transfer::write_offer(int to, Frame& frame) {
  FrameHeader& header = frame.header;
  header.kind = FrameKind::offer;
  header.is_refused = call_.refusal.has_value();
  peer(to).is_offer_sent = true;
  if (call_.refusal) return;
  header.has_values = is_inline_;
  if (call_.kind == CallKind::exchange) {
    Bytes& message = messages_[static_cast<std::size_t>(call_.rank)];
    header.total = static_cast<std::int64_t>(message.size());
    if (is_inline_) frame.payload.push_back(piece_of(message.data(), header.total));
    return;
  }
  if (call_.kind == CallKind::all_gather)
    header.total = call_.parts.front().tensor->size(call_.axis);
  if (!is_inline_ || !has_values_ || !call_.reads_tensors()) return;
  if (call_.kind == CallKind::reduce && to != call_.root) return;
  add_all(call_, scratch_, frame.payload);
}

void Transfer::write_call(int to, Frame& frame) {
  frame.header.kind = FrameKind::spec;
  frame.payload.push_back(piece_of(own_spec_.data(), static_cast<std::int64_t>(own_spec_.size())));
  peer(to).is_spec_sent = true;
}

bool Transfer::write_contribution(int to, Frame& frame) {
  if (!is_reduced_in_shares()) return false;
  std::int64_t& sent = peer(to).contribution_sent;
  const Range share = share_of(call_, to);
  if (sent >= share.length()) return false;
  const std::int64_t begin = share.begin + sent;
  const Range range{begin, std::min(share.end, begin + segment_bytes_)};
  frame.header.kind = FrameKind::contribution;
  frame.header.offset = static_cast<std::uint64_t>(sent);
  frame.header.total = range.length();
  add_pieces(call_, range, frame.payload);
  sent += range.length();
  return true;
}

bool Transfer::write_values(int to, Frame& frame) {
  std::int64_t& sent = peer(to).values_sent;
  if (is_inline_ || sent >= values_ready_) return false;
  const Range range{sent, std::min(values_ready_, sent + kSegmentBytesMax)};
  frame.header.kind = FrameKind::values;
  frame.header.offset = static_cast<std::uint64_t>(sent);
  frame.header.total = range.length();
  add_values(call_.rank, range, frame.payload);
  sent = range.end;
  return true;
}

void Transfer::add_values(int of, Range range, Pieces& pieces) {
  const auto i = static_cast<std::size_t>(of);
  const auto add = [&](std::byte* data) {
    pieces.push_back(piece_of(data + range.begin, range.length()));
  };
  switch (call_.kind) {
    case CallKind::exchange:
      return add(messages_[i].data());
    case CallKind::all_gather: {
      if (of == call_.rank) return add(call_.parts.front().data);
      if (!is_gathered_in_place()) return add(gathered_[i].data());
      const std::int64_t row_bytes =
          static_cast<std::int64_t>(call_.result.nbytes()) / call_.result.size(call_.axis);
      return add(static_cast<std::byte*>(call_.result.data_ptr()) + places_[i] * row_bytes);
    }
    default: {
      const std::int64_t begin = call_.kind == CallKind::broadcast ? 0 : share_of(call_, of).begin;
      add_pieces(call_, {begin + range.begin, begin + range.end}, pieces);
    }
  }
}

Acceptance Transfer::accept(int from, const FrameHeader& header, Pieces& into) {
  if (header.call > number_) return Acceptance::hold;
  Peer& sender = peer(from);
  if (header.call < number_ || header.total < 0) return Acceptance::refuse;
  if (header.kind == FrameKind::offer)
    return sender.has_begun ? Acceptance::refuse : accept_offer(from, header, into);
  if (!sender.has_begun || sender.spec) return Acceptance::refuse;
  if (header.kind == FrameKind::spec) {
    sender.spec_bytes.resize(header.length);
    into.push_back(piece_of(sender.spec_bytes.data(), header.length));
    return Acceptance::take;
  }
  return accept_values(from, header, into);
}

Acceptance Transfer::accept_offer(int from, const FrameHeader& header, Pieces& into) {
  Peer& sender = peer(from);
  if (header.length > Scratch::kBytes) return Acceptance::refuse;
  sender.is_alike = header.fingerprint == fingerprint_ && !header.is_refused && !call_.refusal;
  if (!sender.is_alike || header.length == 0) {
    into.push_back(piece_of(scratch_.of(from), header.length));  // dropped
    return Acceptance::take;
  }
  if (call_.kind == CallKind::exchange) {
    Bytes& message = messages_[static_cast<std::size_t>(from)];
    message.resize(header.length);
    into.push_back(piece_of(message.data(), header.length));
  } else if (call_.kind == CallKind::all_gather) {
    into.push_back(piece_of(scratch_.of(from), header.length));
  } else {
    add_all(call_, scratch_, into, scratch_.of(from));
    if (bytes_of(into) != header.length) return Acceptance::refuse;
  }
  return Acceptance::take;
}

Acceptance Transfer::accept_values(int from, const FrameHeader& header, Pieces& into) {
  if (!is_decided_) return Acceptance::hold;
  if (header.length > Scratch::kBytes) return Acceptance::refuse;
  if (!is_agreed_) {
    into.push_back(piece_of(scratch_.of(from), header.length));  // dropped
    return Acceptance::take;
  }
  const Peer& sender = peer(from);
  const auto offset = static_cast<std::int64_t>(header.offset);
  if (header.kind == FrameKind::values) {
    const std::int64_t left = sender.values_expected - sender.values_got;
    if (offset != sender.values_got || header.total > std::min(left, kSegmentBytesMax))
      return Acceptance::refuse;
    add_values(from, {offset, offset + header.total}, into);
  } else {
    if (offset != sender.contribution_got || offset >= share_.length()) return Acceptance::refuse;
    if (offset > num_reduced_) return Acceptance::hold;
    const std::int64_t begin = share_.begin + offset;
    const Range range{begin, std::min(share_.end, begin + segment_bytes_)};
    if (range.length() != header.total) return Acceptance::refuse;
    add_pieces(call_, range, into, scratch_.of(from));
  }
  return bytes_of(into) == header.length ? Acceptance::take : Acceptance::refuse;
}

bool Transfer::received(int from, const FrameHeader& header) {
  Peer& sender = peer(from);
  switch (header.kind) {
    case FrameKind::offer:
      sender.has_begun = true;
      sender.total = header.total;
      sender.has_values_in_offer = header.has_values;
      num_begun_ += 1;
      return true;
    case FrameKind::spec:
      try {
        sender.spec = decode_call_spec(sender.spec_bytes);
      } catch (const Error& error) {
        return error.code() != ErrorCode::data_loss;
      }
      return true;
    case FrameKind::contribution:
      sender.contribution_got += header.total;
      if (is_agreed_) reduce_segment();
      return true;
    case FrameKind::values:
      sender.values_got += header.total;
      return true;
  }
  return false;
}

void Transfer::reduce_segment() {
  for (int rank = 0; rank < call_.size; ++rank) {
    if (rank != call_.rank && peer(rank).contribution_got <= num_reduced_) return;
  }
  const std::int64_t begin = share_.begin + num_reduced_;
  const Range range{begin, std::min(share_.end, begin + segment_bytes_)};
  reduce_range(call_, range, scratch_);
  num_reduced_ += range.length();
  if (call_.kind == CallKind::all_reduce) values_ready_ = num_reduced_;
}

void Transfer::decide() {
  is_decided_ = true;
  is_agreed_ = !call_.refusal;
  for (int rank = 0; rank < call_.size; ++rank)
    is_agreed_ = is_agreed_ && (rank == call_.rank || peer(rank).is_alike);
  if (is_agreed_) {
    prepare_values();
    return;
  }
  Peer& own = peer(call_.rank);
  own.spec = call_.spec();
  own_spec_ = encode(*own.spec);
}

void Transfer::prepare_values() {
  if (call_.kind == CallKind::all_gather) allocate_gathered();
  for (int rank = 0; rank < call_.size; ++rank) {
    Peer& sender = peer(rank);
    if (rank == call_.rank || sender.has_values_in_offer) continue;
    switch (call_.kind) {
      case CallKind::exchange:
        sender.values_expected = sender.total;
        messages_[static_cast<std::size_t>(rank)].resize(static_cast<std::size_t>(sender.total));
        break;
      case CallKind::broadcast:
        sender.values_expected = rank == call_.root ? call_.payload_bytes : 0;
        break;
      case CallKind::all_reduce:
        sender.values_expected = share_of(call_, rank).length();
        break;
      default:
        break;
    }
  }
}

bool Transfer::is_gathered_in_place() const {
  return c10::numelements_to_dim(static_cast<int>(call_.axis), call_.result.sizes()) == 1;
}

void Transfer::allocate_gathered() {
  std::vector<std::int64_t> lengths;
  for (int rank = 0; rank < call_.size; ++rank) {
    std::int64_t before = places_.empty() ? 0 : places_.back() + lengths.back();
    places_.push_back(before);
    lengths.push_back(rank == call_.rank ? call_.parts.front().tensor->size(call_.axis)
                                         : peer(rank).total);
    peer(rank).total = lengths.back();
  }
  call_.allocate_gathered(lengths);
  gathered_.resize(peers_.size());
  if (call_.result.numel() == 0) return;
  const std::int64_t bytes_each =
      static_cast<std::int64_t>(call_.result.nbytes()) / call_.result.size(call_.axis);
  for (int rank = 0; rank < call_.size; ++rank) {
    Peer& sender = peer(rank);
    if (rank == call_.rank || sender.has_values_in_offer) continue;
    sender.values_expected = sender.total * bytes_each;
    if (!is_gathered_in_place())
      gathered_[static_cast<std::size_t>(rank)].resize(
          static_cast<std::size_t>(sender.values_expected));
  }
}

bool Transfer::is_complete() const {
  if (!is_decided_) return false;
  for (int rank = 0; rank < call_.size; ++rank) {
    if (awaited(rank) != Awaited::nothing) return false;
  }
  return true;
}

Awaited Transfer::awaited(int from) const {
  if (from == call_.rank) return Awaited::nothing;
  const Peer& sender = peer(from);
  if (!sender.has_begun) return Awaited::beginning;
  if (!is_decided_) return Awaited::nothing;
  if (!is_agreed_) return sender.spec ? Awaited::nothing : Awaited::values;
  // A member whose contribution is there, but not yet added, is not late.
  const std::int64_t needed = std::min(share_.length(), num_reduced_ + 1);
  if (sender.contribution_got < needed) return Awaited::values;
  if (sender.values_got == sender.values_expected) return Awaited::nothing;
  return call_.kind == CallKind::all_reduce ? Awaited::results : Awaited::values;
}

std::vector<CallSpec> Transfer::specs() const {
  std::vector<CallSpec> specs;
  for (const Peer& member : peers_) specs.push_back(*member.spec);
  return specs;
}

void Transfer::finish() {
  if (!has_values_) return;
  if (call_.kind == CallKind::all_gather) {
    for (int rank = 0; rank < call_.size; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      const Bytes& gathered = gathered_[i];
      const std::byte* from = gathered.data();
      if (rank == call_.rank)
        from = call_.parts.front().data;
      else if (peer(rank).has_values_in_offer)
        from = scratch_.of(rank);
      else if (gathered.empty())
        continue;  // in place
      call_.gather(from, places_[i], peer(rank).total);
    }
    return;
  }
  const bool has_results = call_.is_reduction() || call_.kind == CallKind::broadcast;
  if (!is_inline_ || !has_results) return;
  if (call_.size == 1 && call_.kind != CallKind::reduce_scatter) return;
  c10::SmallVector<const std::byte*, 8> payloads;
  for (int rank = 0; rank < call_.size; ++rank) {
    if (rank != call_.rank) {
      payloads.push_back(scratch_.of(rank));
    } else if (call_.parts.size() == 1) {
      payloads.push_back(call_.parts.front().data);
    } else {
      // add_all() may have copied them there already, which is cheaper than remembering it.
      if (call_.reads_tensors()) call_.write_payload(scratch_.of(rank));
      payloads.push_back(scratch_.of(rank));
    }
  }
  call_.combine({payloads.data(), payloads.size()});
}

}  // namespace cohort::collective::tcp
