// SPDX-License-Identifier: Apache-2.0
// The sending and receiving of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/payload.h"
#include "cohort/collective/backends/tcp/session.h"
#include "cohort/collective/groups/call.h"

namespace cohort::collective::tcp {

// A call begins with an offer of each member to all others. It has the fingerprint of the call, and
// if they are few, the member's values. Then a call needs one message in each direction.
//
// Otherwise the values follow it, and are not held back until all offers are there. A receiver does
// not write them to tensors before that. For sums each member owns a share of the elements, to
// which the others contribute; it adds a segment when all contributions to it are there, and sends
// the sums to all. Values that are only copied go straight to all that need them.
//
// If the calls differ, all members notice it by the offers. Each ends its frame, sends its whole
// call as the last one, and drops values until it has those of all others: so the connections are
// as before the call.
//
// Used only from the thread that makes the call.
class Transfer {
 public:
  // `message` is that of exchange(). Without values, members only find out whether they agree.
  Transfer(Call& call, std::uint64_t number, Scratch& scratch, Bytes message, bool has_values);

  // The next frame for a member; false if there is none now. The memory of the payload must not
  // change before the next call of this for the same member.
  bool next_frame(int to, Frame& frame);
  // Appends where the payload of this frame goes, exactly header.length bytes. `hold`: this frame
  // and those after it wait.
  Acceptance accept(int from, const FrameHeader& header, Pieces& into);
  // The payload is there, and its checksum is right. False if its content is wrong.
  bool received(int from, const FrameHeader& header);
  // Whether all members have begun the call, and decide() has not been called.
  bool must_decide() const { return num_begun_ == call_.size && !is_decided_; }
  // Compares the calls of the members. Only after it the call may write to tensors.
  void decide();
  // All that this member needs has arrived.
  bool is_complete() const;
  Awaited awaited(int from) const;

  // After the end: whether the calls agreed, and if not, the calls in the order of ranks.
  bool is_agreed() const { return is_agreed_; }
  std::vector<CallSpec> specs() const;
  // Computes the results of values that came with the offers.
  void finish();
  std::vector<Bytes> take_messages() { return std::move(messages_); }

 private:
  struct Peer {
    bool has_begun = false;
    bool is_alike = false;  // its call agrees with this one
    std::int64_t total = 0;
    bool has_values_in_offer = false;
    bool is_offer_sent = false;
    bool is_spec_sent = false;
    Bytes spec_bytes = {};
    std::optional<CallSpec> spec = {};
    // Bytes of each kind.
    std::int64_t contribution_sent = 0;
    std::int64_t contribution_got = 0;
    std::int64_t values_sent = 0;
    std::int64_t values_got = 0;
    std::int64_t values_expected = 0;
  };

  bool is_reduced_in_shares() const { return call_.is_reduction() && !is_inline_; }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  // Whether the values of each member lie together in the result of all_gather().
  bool is_gathered_in_place() const;
  void prepare_values();
  void allocate_gathered();

  void write_offer(int to, Frame& frame);
  void write_call(int to, Frame& frame);
  bool write_contribution(int to, Frame& frame);
  bool write_values(int to, Frame& frame);
  Acceptance accept_offer(int from, const FrameHeader& header, Pieces& into);
  Acceptance accept_values(int from, const FrameHeader& header, Pieces& into);
  // `range`: of the values that the member `of` sends.
  void add_values(int of, Range range, Pieces& pieces);
  // Sums the next segment of this member's share, if all contributions to it are there.
  void reduce_segment();

  Call& call_;
  const std::uint64_t number_;
  const std::uint64_t fingerprint_;
  Scratch& scratch_;
  const bool has_values_;
  bool is_inline_ = false;  // this member sends its values with the offer
  std::int64_t segment_bytes_ = kSegmentBytesMax;
  std::vector<Peer> peers_;
  int num_begun_ = 1;  // with this member
  bool is_decided_ = false;
  bool is_agreed_ = false;
  Range share_ = {};
  std::int64_t num_reduced_ = 0;  // bytes of the share
  // The bytes of this member's values that are ready.
  std::int64_t values_ready_ = 0;
  Bytes own_spec_ = {};
  std::vector<Bytes> messages_ = {};  // of exchange()
  std::vector<Bytes> gathered_ = {};  // of all_gather, if values do not lie together in the result
  std::vector<std::int64_t> places_ = {};  // of all_gather: the sizes before each member's
};

}  // namespace cohort::collective::tcp
