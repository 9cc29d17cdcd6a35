/* full_sheet.c: a piece of output that the sheet does not take now is said when it does. */
#include "runner/attempt.c"

int main(void)
{
    int ends[2];
    char packet[NM_PACKET_BYTES];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0 || !nm_output_begin(&self.output, 0))
        return 1;
    nm_output_add(&self.output, "line\n", 5);
    self.contact = ends[0];
    self.sheet = open("/dev/full", O_RDWR | O_CLOEXEC);
    self.supervisor = 1;
    snprintf(self.named.job, sizeof self.named.job, "j1");
    self.named.attempt = 1;
    say_next();
    printf("%d %d\n", self.said, timeout());
    self.sheet = nm_memfd("sheet");
    say_next();
    printf("%d %d\n", self.said, timeout());
    return recv(ends[1], packet, sizeof packet, MSG_DONTWAIT) > 0 ? 0 : 1;
}
