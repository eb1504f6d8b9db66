"""SOAP of the Windows remote shell (MS-WSMV): requests read, answers written."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from lxml import etree

from tests.simulators.winrm.faults import Fault

SOAP = "http://www.w3.org/2003/05/soap-envelope"
ADDRESSING = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
WSMAN = "http://schemas.dmtf.org/wbem/wsman/1/wsman.xsd"
TRANSFER = "http://schemas.xmlsoap.org/ws/2004/09/transfer"
SHELL = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell"
FAULT = "http://schemas.microsoft.com/wbem/wsman/1/wsmanfault"

NAMES = {"s": SOAP, "a": ADDRESSING, "w": WSMAN, "x": TRANSFER, "rsp": SHELL, "f": FAULT}

CMD = f"{SHELL}/cmd"
CREATE = f"{TRANSFER}/Create"
DELETE = f"{TRANSFER}/Delete"
COMMAND = f"{SHELL}/Command"
SEND = f"{SHELL}/Send"
RECEIVE = f"{SHELL}/Receive"
SIGNAL = f"{SHELL}/Signal"

_PARSER = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)


@dataclass(frozen=True, kw_only=True)
class Message:
    """A request: what its header asks for, and its body."""

    action: str
    id: str
    shell: str
    seconds: float
    """Its operation timeout."""
    body: etree._Element

    def text(self, path: str) -> str:
        """The text of the first element of the body at a path with the prefixes of `NAMES`; empty when there is none."""
        found = self.body.find(path, NAMES)
        return (found.text or "") if found is not None else ""

    def attribute(self, path: str, name: str) -> str:
        """An attribute of the first element at a path; empty when there is none."""
        found = self.body.find(path, NAMES)
        return found.get(name, "") if found is not None else ""


def parse(content: bytes) -> Message:
    """A request. Raises `ValueError` when it is none."""
    try:
        root = etree.fromstring(content, _PARSER)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"no XML: {error}") from error
    header, body = root.find("s:Header", NAMES), root.find("s:Body", NAMES)
    if header is None or body is None:
        raise ValueError("no SOAP envelope")

    def said(path: str) -> str:
        return (header.findtext(path, "", NAMES) or "").strip()

    return Message(
        action=said("a:Action"),
        id=said("a:MessageID"),
        shell=said("w:SelectorSet/w:Selector[@Name='ShellId']"),
        seconds=_seconds(said("w:OperationTimeout")),
        body=body,
    )


def created(message: Message, shell: str) -> bytes:
    """The answer to Create."""
    body = f"""<x:ResourceCreated><a:Address>http://127.0.0.1/wsman</a:Address><a:ReferenceParameters>
        <w:ResourceURI>{CMD}</w:ResourceURI><w:SelectorSet><w:Selector Name="ShellId">{shell}</w:Selector></w:SelectorSet>
        </a:ReferenceParameters></x:ResourceCreated>"""
    return _answer(message, f"{CREATE}Response", body)


def done(message: Message) -> bytes:
    """The answer to Delete, Send and Signal."""
    name = message.action.rpartition("/")[2]
    body = "" if name == "Delete" else f"<rsp:{name}Response/>"
    return _answer(message, f"{message.action}Response", body)


def started(message: Message, command: str) -> bytes:
    """The answer to Command."""
    return _answer(
        message,
        f"{COMMAND}Response",
        f"<rsp:CommandResponse><rsp:CommandId>{command}</rsp:CommandId></rsp:CommandResponse>",
    )


def received(message: Message, command: str, pieces: Iterable[tuple[str, bytes]], exit_code: int | None) -> bytes:
    """The answer to Receive: pieces of streams, and the exit code when the command has ended."""
    streams = "".join(
        f'<rsp:Stream Name="{name}" CommandId="{command}">{base64.b64encode(content).decode()}</rsp:Stream>'
        for name, content in pieces
    )
    if exit_code is None:
        state = f'<rsp:CommandState CommandId="{command}" State="{SHELL}/CommandState/Running"/>'
    else:
        ends = "".join(
            f'<rsp:Stream Name="{name}" CommandId="{command}" End="true"></rsp:Stream>' for name in ("stdout", "stderr")
        )
        state = (
            f'{ends}<rsp:CommandState CommandId="{command}" State="{SHELL}/CommandState/Done">'
            f"<rsp:ExitCode>{exit_code}</rsp:ExitCode></rsp:CommandState>"
        )
    return _answer(message, f"{RECEIVE}Response", f"<rsp:ReceiveResponse>{streams}{state}</rsp:ReceiveResponse>")


def faulted(message: Message | None, fault: Fault) -> bytes:
    """The answer that tells of a fault."""
    text = _escaped(fault.text)
    body = f"""<s:Fault><s:Code><s:Value>s:Receiver</s:Value><s:Subcode><s:Value>{fault.subcode}</s:Value></s:Subcode>
        </s:Code><s:Reason><s:Text xml:lang="en-US">{text}</s:Text></s:Reason><s:Detail>
        <f:WSManFault Code="{fault.code}" Machine="127.0.0.1"><f:Message>{text}</f:Message></f:WSManFault>
        </s:Detail></s:Fault>"""
    return _answer(message, "http://schemas.dmtf.org/wbem/wsman/1/wsman/fault", body)


def _answer(message: Message | None, action: str, body: str) -> bytes:
    spaces = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMES.items())
    relates = f"<a:RelatesTo>{_escaped(message.id)}</a:RelatesTo>" if message is not None else ""
    return (
        f'<s:Envelope xml:lang="en-US" {spaces}><s:Header><a:Action>{action}</a:Action>'
        f"<a:MessageID>uuid:{uuid.uuid4()}</a:MessageID>"
        f"<a:To>{ADDRESSING}/role/anonymous</a:To>{relates}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _seconds(duration: str) -> float:
    found = re.fullmatch(r"PT(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?", duration)
    if not found:
        return 60.0
    return int(found[1] or 0) * 60 + float(found[2] or 0)
